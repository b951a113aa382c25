"""What the inputs of a graph are for, and which loops run over the batch.

Nothing here looks at a name: a parameter is what reaches a dense product through light operators
(of the forward pass, where every parameter of a model acts before its gradient exists);
optimizer state only meets gradients and never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from meshwise.graph.graph import Graph, Operator
from meshwise.graph.light import is_light
from meshwise.graph.structure import Structure

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
