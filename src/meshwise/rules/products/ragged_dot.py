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

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind
from meshwise.rules.products.ragged_rule import RaggedDims, Run, is_of_batch, ragged_dot_rule
from meshwise.rules.products.ragged_work import ragged_dot_flop, ragged_dot_scratch
from meshwise.rules.products.row_function import RowFunction, RowProduct
from meshwise.rules.products.row_groups import LocalGroups
from meshwise.rules.products.strips import (
    Groups,
    most_rows,
    rows_by_matrices,
    rows_by_rows,
    sum_dtype,
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
        if more := count - sizes.shape[-1]:
            sizes = jnp.pad(sizes, [(0, 0)] * (sizes.ndim - 1) + [(0, more)])
        return rebind(eqn, (lhs, rhs, sizes), out_sharding=None)
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

    def by_matrices(rows: jax.Array, own: Groups) -> jax.Array:
        product = RowProduct(0, 0, dims.is_turned, str(out.dtype), precision)
        return rows_by_matrices(
            rows,
            [other],
            own,
            function=RowFunction((product,)),
            strips=local.strips(rows, own, most),
            some=local.some,
        )

    def by_rows(left: jax.Array, right: jax.Array, own: Groups, sums: jax.Array) -> jax.Array:
        strips = local.strips(left, own, most)
        return rows_by_rows(
            left, right, own, sums, strips=strips, precision=precision, some=local.some
        )

    def nothing(num_matrices: int, dtype: np.dtype) -> jax.Array:
        return jnp.zeros((num_matrices, rows.shape[-1], columns), dtype)

    if local.rows is not None:
        if dims.groups:
            return by_matrices(rows, local.rows)
        return by_rows(rows, other, local.rows, nothing(len(local.rows.first), out.dtype))
    assert local.routes is not None
    if dims.groups:
        results = [jnp.zeros((len(rows), columns), out.dtype)]
        (made,), _ = local.routes.run(
            [rows], lambda came, own, _: ([by_matrices(came[0], own)], None), results, None
        )
        return made
    _, sums = local.routes.run(
        [rows, other],
        lambda came, own, sums: ([], by_rows(came[0], came[1], own, sums)),
        [],
        nothing(local.num_groups, sum_dtype(out.dtype)),
    )
    return sums.astype(out.dtype)


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
