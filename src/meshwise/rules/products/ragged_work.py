"""What `ragged_dot_general` computes, holds besides operands and results, and writes and reads.

Source of what it holds: temporaries of both products, compiled by XLA:GPU (JAX 0.10.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwise.graph.dispatch import SUM_BYTES
from meshwise.graph.graph import Scratch
from meshwise.rules.primitive import Equation
from meshwise.rules.products.ragged_rule import RaggedDims, is_of_batch, ragged_dot_rule
from meshwise.rules.products.strips import (
    STRIPS_OF_GROUP,
    computed_rows,
    most_rows,
    strip_rows,
)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of a whole operator.

    Attributes:
        num_rows: Rows of all groups.
        num_matrices: Groups, each of all sequences, of all of the batch.
        width: Elements of a row of the left operand.
        columns: Elements of a row of the result, or of the right operand where rows are contracted.
    """

    num_rows: int
    num_matrices: int
    width: int
    columns: int

    @staticmethod
    def of(eqn: Equation, dims: RaggedDims) -> _Sizes:
        """Return the sizes of an equation with these dims."""
        lhs, rhs, sizes = (aval.shape for aval in eqn.in_avals)
        rows, width = (math.prod(lhs[i] for i in run) for run in dims.left)
        return _Sizes(
            num_rows=rows,
            num_matrices=math.prod(lhs[i] for i in dims.batch[0]) * sizes[-1],
            width=width,
            columns=math.prod(rhs[i] for i in dims.free[1]),
        )


def ragged_dot_flop(eqn: Equation) -> float:
    """2 x rows x columns x contracted, with the rows that fill the last strip of each group.

    Where groups are split each device has its share of the rows if the groups are equally large.
    """
    if is_of_batch(eqn):
        numbers = eqn.params["ragged_dot_dimension_numbers"]
        (contracted, _), _ = numbers.dot_dimension_numbers
        width = math.prod(eqn.in_avals[0].shape[i] for i in contracted)
        return 2.0 * math.prod(eqn.out_avals[0].shape) * width
    sizes = _Sizes.of(eqn, RaggedDims.of(eqn))
    rows = computed_rows(sizes.num_rows, sizes.num_matrices)
    return 2.0 * rows * sizes.width * sizes.columns


def ragged_dot_scratch(eqn: Equation) -> Scratch | None:
    """Return the scratch: a matrix or its sums, a strip of both kinds of rows, copied operands.

    Splitting rows or groups does not divide the matrix and the strip that a device holds; splitting
    their widths does.  In rounds a strip may have fewer rows.  A device reads a matrix once for
    each strip, of which a group has a few, and more if it has many rows.
    """
    if is_of_batch(eqn):
        return None
    lhs, rhs, _ = eqn.in_avals
    (out,) = eqn.out_avals
    dims = RaggedDims.of(eqn)
    sizes = _Sizes.of(eqn, dims)
    makes_matrices = not dims.groups
    of_row = sizes.width * lhs.dtype.itemsize
    of_other = sizes.columns * (rhs if makes_matrices else out).dtype.itemsize
    number = max(SUM_BYTES, out.dtype.itemsize) if makes_matrices else rhs.dtype.itemsize
    of_matrix = sizes.width * sizes.columns * number
    # For each strip a matrix is read; sums are read and written.
    of_strip = (2 if makes_matrices else 1) * of_matrix
    # Both kinds of rows are copied into strips; those of a result are made there first.
    moved = 2 * of_row + (2 if makes_matrices else 3) * of_other
    # Operands whose dims lie in another order than the products take them are copied.
    orders = (sum(dims.left, ()), sum(dims.right, ()))
    copied = [
        x for x, order in zip((lhs, rhs), orders, strict=True) if list(order) != sorted(order)
    ]
    rule = ragged_dot_rule(eqn)
    of_widths = {
        loop
        for side in (0, 1)
        for i in (*dims.contracted[side], *dims.free[side])
        for loop in rule.operands[side][i]
    }
    of_batch = {loop for i in dims.batch[0] for loop in rule.operands[0][i]}
    of_dispatch = () if rule.dispatch is None else (rule.dispatch.loop,)
    most = most_rows(makes_matrices=makes_matrices)
    strip = strip_rows(sizes.num_rows, sizes.num_matrices, most)
    return Scratch(
        num_bytes=float(strip * (of_row + of_other)),
        share=1.0,
        traffic_bytes=float(sizes.num_rows * moved),
        whole_bytes=float(sum(x.size * x.dtype.itemsize for x in copied)),
        loops=tuple(sorted(of_widths)),
        # The half-empty last strip costs half a strip's traffic a group.  A matrix is copied (read,
        # written) before its strips; sums are read before them and written after.
        unsplit_traffic_bytes=sizes.num_matrices * (of_strip / 2 + 2 * of_matrix),
        strip_traffic_bytes=sizes.num_rows * of_strip / most,
        least_strip_traffic_bytes=float(sizes.num_matrices * STRIPS_OF_GROUP * of_strip),
        traffic_loops=tuple(sorted({*of_widths, *of_batch, *dims.of_groups(rule), *of_dispatch})),
        row_bytes=float(of_row + of_other),
        matrix_bytes=float(of_matrix),
        sum_bytes=float(of_matrix) if makes_matrices and out.dtype.itemsize < SUM_BYTES else 0.0,
    )
