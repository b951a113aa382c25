"""Decompositions and solves of matrices: batch dims are parallel, the matrices stay whole."""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwise.graph.loops import LoopRule
from meshwise.rules.loop_list import LoopList, dims_like
from meshwise.rules.primitive import Equation, PrimitiveRule

# Dims of the first operand that make up one problem.
_MATRIX = {
    "cholesky": 2,
    "eig": 2,
    "eigh": 2,
    "geqrf": 2,
    "hessenberg": 2,
    "householder_product": 2,
    "lu": 2,
    "lu_pivots_to_permutation": 1,
    "ormqr": 2,
    "qr": 2,
    "schur": 2,
    "svd": 2,
    "symmetric_product": 2,
    "triangular_solve": 2,
    "tridiagonal": 2,
    "tridiagonal_solve": 1,
}


def batch_rule(eqn: Equation) -> LoopRule:
    """The leading dims that all operands and results share are loops."""
    shape = eqn.in_avals[0].shape
    rank = len(shape) - _MATRIX[eqn.name]
    loops = LoopList()
    batch = loops.add_dims(shape[:rank])
    maps = [(*batch, *dims_like(aval.shape[rank:])) for aval in (*eqn.in_avals, *eqn.out_avals)]
    count = len(eqn.in_avals)
    return LoopRule(
        loops.done(),
        tuple(maps[:count]),
        tuple(maps[count:]),
        whole=f"{eqn.name} needs whole matrices",
    )


def _cubic_flop(eqn: Equation) -> float:
    # Order of magnitude n^3 for each matrix: enough to see that batch dims are worth splitting.
    shape = eqn.in_avals[0].shape
    return float(math.prod(shape) * shape[-1])


TABLE: Mapping[str, PrimitiveRule] = {
    name: PrimitiveRule(batch_rule, flop=_cubic_flop) for name in _MATRIX
}
