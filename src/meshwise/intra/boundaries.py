"""Layouts among which the operands and results of an operator with bodies may choose.

They are those inside of the bodies: without the dim that a scan slices or stacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.graph.graph import Operator
from meshwise.graph.layout import Layout, replicated
from meshwise.graph.structure import Structure
from meshwise.intra.candidates import partial_layouts, whole_layouts
from meshwise.intra.regions import Region


def entering(
    region: Region, op: Operator, k: int, inner: Sequence[Region], sizes: tuple[int, ...]
) -> tuple[Layout, ...]:
    """Layouts in which an operand may enter the bodies.

    Args:
        region: Where the operator stands.
        op: The operator.
        k: Position of the operand.
        inner: The regions of its bodies.
        sizes: Of the mesh.
    """
    structure, tensor = op.structure, region.graph.tensors[op.inputs[k]]
    assert structure is not None
    if k in structure.whole_operands:
        return (replicated(len(tensor.shape)),)
    shape = tensor.shape[1:] if k in structure.stacked_operands else tensor.shape
    j = structure.carried_result(k)
    if j is not None and all(_sums(inner[p], n) for p, n in structure.makers(j)):
        return partial_layouts(shape, sizes)
    return whole_layouts(shape, sizes)


def leaving(
    structure: Structure, j: int, inner: Sequence[Region], sizes: tuple[int, ...]
) -> tuple[Layout, ...]:
    """Layouts in which the bodies may leave result `j`; partial if none needs to finish it."""
    made = [(inner[p], inner[p].graph.outputs[n]) for p, n in structure.makers(j)]
    tensor = made[0][0].graph.tensors[made[0][1]]
    sums = [t in region.blocks.may_be_partial for region, t in made]
    # A branch that makes a constant makes it on one device only.
    others = [region.graph.tensors[t].generated for region, t in made]
    if any(sums) and all(a or b for a, b in zip(sums, others, strict=True)):
        return partial_layouts(tensor.shape, sizes)
    return whole_layouts(tensor.shape, sizes)


def _sums(inner: Region, n: int) -> bool:
    """Whether a carry is an accumulator of terms that may be partial."""
    t = inner.graph.outputs[n]
    return t in inner.blocks.may_be_partial and t not in inner.graph.inputs
