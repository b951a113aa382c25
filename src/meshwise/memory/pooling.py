"""Zeros to which the gradient of a max-pooling is added.

XLA:GPU scatters that gradient into zeros.  Where the pooled value is a `max(x, 0)`, these are the
zeros of that comparison, which are then made beside its result, and copied before the scatter: both
stay from the forward to the backward pass.  Any maximum is taken for such a comparison.

Source: compiled programs (docs/measurements/target_memory.md).
"""

from __future__ import annotations

from meshwise.graph.graph import Graph
from meshwise.memory.local_program import InstructionKind, LocalProgram, LocalValue

POOLING_GRADIENT = "select_and_scatter_add"


def pooled_comparisons(graph: Graph) -> frozenset[int]:
    """Return the tensors that are results of `max` and of which gradients of pooling are taken.

    Args:
        graph: The graph of a program or of a body.
    """
    compared = {op.outputs[0] for op in graph.operators if op.kind == "max"}
    pooled = {op.inputs[-1] for op in graph.operators if op.kind == POOLING_GRADIENT}
    return frozenset(compared & pooled)


def zeros_beside(out: LocalProgram, value: int) -> tuple[int, int]:
    """Add the zeros that are made with a value, and their copy; return the copy, then the zeros.

    Args:
        out: The program.
        value: The result of the comparison.
    """
    made = out.values[value]
    zeros = out.add(made._replace(kind=InstructionKind.FUSIBLE))
    copy = LocalValue(InstructionKind.OPAQUE, (zeros,), made.num_bytes, made.tensor, made.time)
    return out.add(copy), zeros
