"""Where operators stand in a graph, and which of their loops run over the batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from meshwise.graph.graph import Graph, Operator
from meshwise.graph.structure import Structure
from meshwise.intra.options import OperatorPath


def operator_paths(graph: Graph, path: OperatorPath = ()) -> list[tuple[OperatorPath, Operator]]:
    """Return the operators of a graph with their paths, those of bodies after their owner."""
    out: list[tuple[OperatorPath, Operator]] = []
    for i, op in enumerate(graph.operators):
        out.append(((*path, i), op))
        for p, body in enumerate(op.bodies):
            out += operator_paths(body, (*path, i, p))
    return out


def batch_loops(graph: Graph, batch_dims: Mapping[int, int]) -> dict[OperatorPath, frozenset[int]]:
    """For each operator the loops that run over the batch, bodies included."""
    found: dict[OperatorPath, frozenset[int]] = {}
    tags = _Tags({(graph.inputs[i], dim) for i, dim in batch_dims.items()})
    _follow(graph, tags, (), found)
    return found


class _Tags:
    """Dims of numbered things, as of the tensors of a graph."""

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._dims: defaultdict[int, set[int]] = defaultdict(set)
        for number, dim in pairs:
            self.add(number, dim)

    def add(self, number: int, dim: int) -> None:
        """Note a dim of a thing."""
        self._dims[number].add(dim)

    def of(self, number: int) -> tuple[int, ...]:
        """Return the dims of a thing."""
        return tuple(self._dims.get(number, ()))

    def __len__(self) -> int:
        return sum(map(len, self._dims.values()))


def _follow(
    graph: Graph,
    tags: _Tags,
    path: OperatorPath,
    found: dict[OperatorPath, frozenset[int]],
) -> None:
    """Extend `tags`, pairs (tensor, dim), over a graph."""
    for i, op in enumerate(graph.operators):
        if op.structure is not None:
            _follow_bodies(op, op.structure, tags, (*path, i), found)
            continue
        loops: set[int] = set()
        for t, dims in zip(op.inputs, op.rule.operands, strict=True):
            for d in tags.of(t):
                major = next((x for x in dims[d] if op.rule.loops[x].size > 1), None)
                if major is not None:
                    loops.add(major)
        if not loops:
            continue
        found[*path, i] = frozenset(loops)
        for t, dims in zip(op.outputs, op.rule.results, strict=True):
            for d, run in enumerate(dims):
                major = next((x for x in run if op.rule.loops[x].size > 1), None)
                if major in loops:
                    tags.add(t, d)


def _follow_bodies(
    op: Operator,
    structure: Structure,
    tags: _Tags,
    path: OperatorPath,
    found: dict[OperatorPath, frozenset[int]],
) -> None:
    """Carry `tags` through the bodies of an operator to its results."""
    count = len(op.inputs)
    # Dims of operands and results inside, results after the operands.
    inside = _Tags()
    for k, t in enumerate(op.inputs):
        shift = 1 if k in structure.stacked_operands else 0
        for d in tags.of(t):
            if d >= shift:
                inside.add(k, d - shift)
    size = -1
    while size != len(inside):
        size = len(inside)
        for p, (part, body) in enumerate(zip(structure.parts, op.bodies, strict=True)):
            inner = _Tags(
                (body.inputs[n], d) for n, k in enumerate(part.operands) for d in inside.of(k)
            )
            _follow(body, inner, (*path, p), found)
            for n, j in enumerate(part.results):
                for d in inner.of(body.outputs[n]) if j >= 0 else ():
                    inside.add(count + j, d)
        for k, j in structure.carries:
            for d in inside.of(count + j):
                inside.add(k, d)
    for j, t in enumerate(op.outputs):
        shift = 1 if j in structure.stacked_results else 0
        for d in inside.of(count + j):
            tags.add(t, d + shift)
