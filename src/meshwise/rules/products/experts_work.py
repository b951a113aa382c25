"""FLOP, memory and traffic of experts as one operator, and of its gradient.

Source of the memory: temporaries of both operators, compiled by XLA:GPU (JAX 0.10.2).
"""

from __future__ import annotations

import math

import numpy as np

from meshwise.graph.dispatch import SUM_BYTES
from meshwise.graph.graph import Scratch
from meshwise.rules.primitive import Equation
from meshwise.rules.products.experts_rule import BACKWARD, FORWARD, experts_rule
from meshwise.rules.products.row_function import RowFunction
from meshwise.rules.products.strips import (
    STRIPS_OF_GROUP,
    computed_rows,
    most_rows,
    strip_rows,
)

# Of the values between the products, in the backward pass: copies held for a strip (with
# cotangents), and times they are written or read.
_VALUES_HELD, _VALUES_MOVED = 3, 8


def forward_flop(eqn: Equation) -> float:
    """Return the FLOP of all products, with the rows that fill the last strip of each group."""
    return 2.0 * _computed_rows(eqn) * sum(_elements(eqn, FORWARD))


def backward_flop(eqn: Equation) -> float:
    """Return the FLOP of the backward pass, which makes all products again but the last one."""
    elements = _elements(eqn, BACKWARD)
    return 2.0 * _computed_rows(eqn) * (3 * sum(elements) - elements[-1])


def forward_scratch(eqn: Equation) -> Scratch:
    """Return the scratch: the matrices of a group, a strip of rows with what is made of it."""
    (of_row, of_result), of_values = _row_bytes(eqn, FORWARD)
    of_matrices = _matrix_bytes(eqn, FORWARD)
    return _scratch(
        eqn,
        FORWARD,
        held=of_row + of_result + of_values,
        # Rows and results are copied into strips; results are made there first.
        moved=3 * of_row + 3 * of_result + 3 * of_values,
        matrices=of_matrices,
        of_strip=of_matrices,
        sums=0,
    )


def backward_scratch(eqn: Equation) -> Scratch:
    """Return the scratch: matrices of a group, sums of their gradients, and a strip of rows."""
    (of_row, of_result), of_values = _row_bytes(eqn, BACKWARD)
    of_matrices = _matrix_bytes(eqn, BACKWARD)
    sums = sum(
        math.prod(x.shape[1:]) * max(SUM_BYTES, x.dtype.itemsize) for x in eqn.in_avals[BACKWARD:]
    )
    return _scratch(
        eqn,
        BACKWARD,
        held=2 * of_row + of_result + _VALUES_HELD * of_values,
        moved=7 * of_row + 4 * of_result + _VALUES_MOVED * of_values,
        matrices=of_matrices + sums,
        # Matrices are read by two products each; sums are read and written.
        of_strip=2 * of_matrices + 2 * sums,
        sums=0 if eqn.out_avals[-1].dtype.itemsize >= SUM_BYTES else sums,
    )


def _scratch(
    eqn: Equation,
    num_first: int,
    *,
    held: int,
    moved: int,
    matrices: int,
    of_strip: int,
    sums: int,
) -> Scratch:
    """Return what both passes have in common.

    Args:
        eqn: The operator.
        num_first: Its operands before the matrices.
        held: Bytes that are held for each row of a strip.
        moved: Bytes that are written and read for each row.
        matrices: Bytes of the matrices of a group, and of their sums.
        of_strip: Bytes of matrices that are read or written with each strip.
        sums: Bytes of the sums of a group that lie beside the results over all rounds.
    """
    num_rows, num_groups = math.prod(eqn.in_avals[0].shape[:-1]), eqn.in_avals[1].shape[-1]
    most = most_rows(makes_matrices=num_first == BACKWARD)
    rule = experts_rule(eqn, num_first)
    of_matrices = rule.operands[num_first:]
    groups = of_matrices[0][0]
    width = {loop for dims in of_matrices for dim in dims[1:] for loop in dim}
    dispatch = () if rule.dispatch is None else (rule.dispatch.loop,)
    return Scratch(
        num_bytes=float(strip_rows(num_rows, num_groups, most) * held),
        share=1.0,
        traffic_bytes=float(num_rows * moved),
        loops=tuple(sorted(width)),
        # The half-empty last strip costs half a strip's traffic a group.  Matrices are copied
        # (read, written) before its strips; sums are read before them and written after.
        unsplit_traffic_bytes=num_groups * (of_strip / 2 + 2 * matrices),
        strip_traffic_bytes=num_rows * of_strip / most,
        least_strip_traffic_bytes=float(num_groups * STRIPS_OF_GROUP * of_strip),
        traffic_loops=tuple(sorted({*width, *groups, *dispatch})),
        row_bytes=float(held),
        matrix_bytes=float(matrices),
        sum_bytes=float(sums),
    )


def _computed_rows(eqn: Equation) -> float:
    return computed_rows(math.prod(eqn.in_avals[0].shape[:-1]), eqn.in_avals[1].shape[-1])


def _elements(eqn: Equation, num_first: int) -> list[int]:
    """Return the elements of the matrix of a group in each product."""
    function: RowFunction = eqn.params["function"]
    matrices = eqn.in_avals[num_first:]
    return [math.prod(matrices[step.matrix].shape[1:]) for step in function.products]


def _matrix_bytes(eqn: Equation, num_first: int) -> int:
    return sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in eqn.in_avals[num_first:])


def _row_bytes(eqn: Equation, num_first: int) -> tuple[tuple[int, int], int]:
    """Return the bytes of a row and of its result, and of all products between them."""
    function: RowFunction = eqn.params["function"]
    rows = eqn.in_avals[0]
    of_products = [
        step.num_columns([x.shape for x in eqn.in_avals[num_first:]])
        * np.dtype(step.dtype).itemsize
        for step in function.products
    ]
    of_row = rows.shape[-1] * rows.dtype.itemsize
    return (of_row, of_products[-1]), sum(of_products[:-1])
