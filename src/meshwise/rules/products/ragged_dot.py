"""`ragged_dot_general`: rows in groups, each group with a matrix of its own.

The ragged dim may be cut into blocks: the sizes of the groups inside a block follow from those of
all.  The groups may be split too (expert parallelism without capacities).  Either each device has
the rows of all groups and multiplies those of its own, so that the products are partial sums; or
rows go to the devices of their groups (`dispatch`).  The local form takes rows of one group at a
time (`strips`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind
from meshwise.rules.products.ragged_rule import RaggedDims, Run, is_of_batch, ragged_dot_rule
from meshwise.rules.products.ragged_work import ragged_dot_flop, ragged_dot_scratch
from meshwise.rules.products.row_function import RowFunction, RowProduct
from meshwise.rules.products.row_groups import LocalGroups, padded_sizes
from meshwise.rules.products.strips import (
    Groups,
    most_rows,
    rows_by_matrices,
    rows_by_rows,
)


def local_ragged_dot(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """Return the result, strip by strip, from rows of own groups: local ones, or rows that come."""
    lhs, rhs, sizes = operands
    if is_of_batch(eqn):
        return [_without_groups(eqn, lhs, rhs)]
    dims = RaggedDims.of(eqn)
    of_groups = dims.of_groups(shards.rule)
    count = shards.local_size(of_groups[0]) if of_groups else sizes.shape[-1]
    # Only sequences are split.  Padded groups have no rows.
    if shards.is_planned:
        return rebind(eqn, (lhs, rhs, padded_sizes(sizes, count)), out_sharding=None)
    if not (lhs.size and rhs.size and sizes.size):
        return [jnp.zeros(shards.result_shape(eqn), eqn.out_avals[0].dtype)]
    made = _product(eqn, shards, dims, operands)
    kept = [lhs.shape[i] for i in (*dims.batch[0], *dims.free[0])]
    columns = [rhs.shape[i] for i in dims.free[1]]
    if not dims.groups:
        return [made.reshape(count, *kept, *columns)]
    return [made.reshape(*kept, *(lhs.shape[i] for i in dims.rows[0]), *columns)]


def _product(
    eqn: Equation, shards: Shards, dims: RaggedDims, operands: Sequence[jax.Array]
) -> jax.Array:
    """Return (row, column), or (matrix, one, other) where rows are contracted."""
    lhs, rhs, sizes = operands
    (out,) = eqn.out_avals
    precision = eqn.params["precision"]
    local = LocalGroups.of(shards, dims, lhs.shape, sizes, dims.of_groups(shards.rule))
    rows, other = _merged(lhs, *dims.left), _merged(rhs, *dims.right)
    columns = math.prod(rhs.shape[i] for i in dims.free[1])
    most = most_rows(makes_matrices=not dims.groups)

    def by_matrices(came: list[jax.Array], own: Groups, sums: Any) -> tuple[list[jax.Array], Any]:
        product = RowProduct(0, 0, dims.is_turned, str(out.dtype), precision)
        made = rows_by_matrices(
            came[0],
            [other],
            own,
            function=RowFunction((product,)),
            strips=local.strips(came[0], own, most),
            some=local.some,
        )
        return [made], sums

    def by_rows(came: list[jax.Array], own: Groups, sums: Any) -> tuple[list[jax.Array], Any]:
        left, right = came
        strips = local.strips(left, own, most)
        return [], rows_by_rows(
            left, right, own, sums, strips=strips, precision=precision, some=local.some
        )

    if dims.groups:
        nothing = jnp.zeros((len(rows), columns), out.dtype)
        (made,), _ = local.run([rows], by_matrices, [nothing], None)
        return made
    sums = local.nothing((rows.shape[-1], columns), out.dtype)
    return local.run([rows, other], by_rows, [], sums)[1].astype(out.dtype)


def _without_groups(eqn: Equation, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Return the dense product."""
    return lax.dot_general(
        lhs,
        rhs,
        eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers,
        precision=eqn.params["precision"],
        preferred_element_type=eqn.out_avals[0].dtype,
    )


def _merged(x: jax.Array, *runs: Run) -> jax.Array:
    """Return an array with one dim for each run of dims."""
    order = [i for run in runs for i in run]
    sizes = [math.prod(x.shape[i] for i in run) for run in runs]
    return lax.transpose(x, order).reshape(sizes)


TABLE = {
    "ragged_dot_general": PrimitiveRule(
        ragged_dot_rule,
        local_ragged_dot,
        ragged_dot_flop,
        heavy=True,
        scratch=ragged_dot_scratch,
    )
}
