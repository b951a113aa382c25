"""What the inputs of a graph are for, and which loops run over the batch.

Nothing here looks at a name: a parameter is what reaches a dense product through light operators
(of the forward pass, where every parameter of a model acts before its gradient exists);
optimizer state only meets gradients and never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwise.graph.graph import Graph, Operator
from meshwise.intra.blocks import is_light
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


def input_info(graph: Graph, batch_dims: Mapping[int, int]) -> InputInfo:
    """Infer the roles of a graph's inputs.

    Args:
        graph: The whole step.
        batch_dims: Positions among the inputs -> the batch dim.
    """
    reaches: set[int] = set()
    for op in reversed(graph.operators):
        if not is_light(op) or any(t in reaches for t in op.outputs):
            reaches.update(op.inputs)
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


def batch_loops(graph: Graph, batch_dims: Mapping[int, int]) -> dict[OperatorPath, frozenset[int]]:
    """For each operator the loops that run over the batch, bodies of scans included."""
    found: dict[OperatorPath, frozenset[int]] = {}
    tags = {(graph.inputs[i], dim) for i, dim in batch_dims.items()}
    _follow(graph, tags, (), found)
    return found


def _follow(
    graph: Graph,
    tags: set[tuple[int, int]],
    path: OperatorPath,
    found: dict[OperatorPath, frozenset[int]],
) -> None:
    """Extend `tags`, pairs (tensor, dim), over a graph."""
    for i, op in enumerate(graph.operators):
        if op.body is not None:
            _follow_scan(op, tags, (*path, i), found)
            continue
        loops: set[int] = set()
        for t, dims in zip(op.inputs, op.rule.operands, strict=True):
            for d, run in enumerate(dims):
                if (t, d) in tags:
                    major = next((x for x in run if op.rule.loops[x].size > 1), None)
                    if major is not None:
                        loops.add(major)
        if loops:
            found[*path, i] = frozenset(loops)
        for t, dims in zip(op.outputs, op.rule.results, strict=True):
            for d, run in enumerate(dims):
                major = next((x for x in run if op.rule.loops[x].size > 1), None)
                if major in loops:
                    tags.add((t, d))


def _follow_scan(
    op: Operator,
    tags: set[tuple[int, int]],
    path: OperatorPath,
    found: dict[OperatorPath, frozenset[int]],
) -> None:
    body = op.body
    assert body is not None
    inner: set[tuple[int, int]] = set()
    split = body.num_consts + body.num_carry
    for k, t in enumerate(op.inputs):
        shift = 1 if k >= split else 0
        inner.update((body.graph.inputs[k], d - shift) for u, d in tags if u == t and d >= shift)
    size = -1
    while size != len(inner):
        size = len(inner)
        _follow(body.graph, inner, path, found)
        for j in range(body.num_carry):
            carried = body.graph.inputs[body.num_consts + j]
            inner.update((carried, d) for u, d in list(inner) if u == body.graph.outputs[j])
    for j, t in enumerate(op.outputs):
        shift = 0 if j < body.num_carry else 1
        tags.update((t, d + shift) for u, d in inner if u == body.graph.outputs[j])
