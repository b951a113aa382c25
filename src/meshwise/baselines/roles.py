"""What the inputs of a graph are for, and which loops run over the batch.

Nothing here looks at a name: a parameter is what reaches a dense product through light operators
(of the forward pass, where every parameter of a model acts before its gradient exists);
optimizer state only meets gradients and never does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshwise.graph.graph import Graph, Operator
from meshwise.graph.light import is_light
from meshwise.graph.structure import Structure
from meshwise.intra.options import OperatorPath

PARAMETER, OPTIMIZER, BATCH, OTHER = "parameter", "optimizer", "batch", "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputInfo:
    """Inputs of a graph.

    Attributes:
        roles: For each input `parameter`, `optimizer`, `batch` or `other`.
        batch_dims: For the inputs with a batch dim (position among the inputs), that dim.
    """

    roles: tuple[str, ...]
    batch_dims: Mapping[int, int]


def input_info(
    graph: Graph, batch_dims: Mapping[int, int], leaving: Iterable[int] = ()
) -> InputInfo:
    """Infer the roles of a graph's inputs.

    Args:
        graph: The whole step, or a piece of it.
        batch_dims: Positions among the inputs -> the batch dim.
        leaving: Positions among the results of activations that later pieces read: what acts on
            them (a bias before a cut) is a parameter too.
    """
    reaches = _reaching(graph, {graph.outputs[j] for j in leaving})
    state = {i for i, _ in graph.aliases}
    roles: list[str] = []
    for i, t in enumerate(graph.inputs):
        if i in batch_dims:
            roles.append(BATCH)
        elif t in reaches and graph.tensors[t].dtype.startswith(("float", "bfloat")):
            roles.append(PARAMETER)
        else:
            roles.append(OPTIMIZER if i in state else OTHER)
    return InputInfo(roles=tuple(roles), batch_dims=dict(batch_dims))


def _reaching(graph: Graph, wanted: set[int]) -> set[int]:
    """Return tensors from which a dense product, or one of `wanted`, follows by light operators."""
    reaches = set(wanted)
    for op in reversed(graph.operators):
        if op.structure is not None:
            reaches.update(op.inputs[k] for k in _reaching_operands(op, op.structure, reaches))
        elif not is_light(op) or any(t in reaches for t in op.outputs):
            reaches.update(op.inputs)
    return reaches


def _reaching_operands(op: Operator, structure: Structure, reaches: set[int]) -> set[int]:
    """Return the same for the operands of an operator with bodies."""
    results = {j for j, t in enumerate(op.outputs) if t in reaches}
    operands: set[int] = set()
    size = -1
    while size != len(operands):
        size = len(operands)
        for part, body in zip(structure.parts, op.bodies, strict=True):
            wanted = {body.outputs[n] for n, j in enumerate(part.results) if j in results}
            inside = _reaching(body, wanted)
            operands.update(
                k for k, t in zip(part.operands, body.inputs, strict=True) if t in inside
            )
        results.update(j for k, j in structure.carries if k in operands)
    return operands


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
