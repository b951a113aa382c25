"""`ragged_dot_general`: rows in groups, each group with a matrix of its own.

The ragged dim may be cut into blocks: the sizes of the groups inside a block follow from those of
all.  The groups may be split too (expert parallelism without capacities): each device has the rows
of all groups and multiplies those of its own, so that the products are partial sums.  Its local
form takes rows of one group at a time (`strips`).
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
from meshwise.rules.products.strips import Groups, rows_by_matrices, rows_by_rows, strip_rows


def local_ragged_dot(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """Strip by strip, with the sizes of the groups inside the local block, and of own groups."""
    lhs, rhs, sizes = operands
    if is_of_batch(eqn):
        return [_without_groups(eqn, lhs, rhs)]
    numbers, rule = eqn.params["ragged_dot_dimension_numbers"], shards.rule
    dims = RaggedDims.of(eqn)
    of_groups = dims.of_groups(rule)
    count = shards.local_size(of_groups[0]) if of_groups else sizes.shape[-1]
    if shards.is_planned:  # Nothing is split but sequences; groups may be padded, and are empty.
        if more := count - sizes.shape[-1]:
            sizes = jnp.pad(sizes, [(0, 0)] * (sizes.ndim - 1) + [(0, more)])
        return rebind(eqn, (lhs, rhs, sizes), out_sharding=None)
    dtype = eqn.out_avals[0].dtype
    if not (lhs.size and rhs.size and sizes.size):
        return [jnp.zeros(shards.result_shape(eqn), dtype)]
    is_split = of_groups and shards.parts(of_groups[0]) > 1
    (follows,) = rule.operands[0][numbers.lhs_ragged_dimensions[0]] or (None,)
    groups = _groups(
        dims,
        lhs.shape,
        sizes,
        start=0 if follows is None else shards.block_start(follows),
        first=shards.block_start(of_groups[0]) if is_split else 0,
        count=count,
    )
    rows = _merged(lhs, *dims.left)
    options = {
        # Groups of other devices have as many rows.
        "strip": strip_rows(len(rows), len(groups.first) * sizes.shape[-1] // count),
        "dtype": dtype,
        "precision": eqn.params["precision"],
    }
    kept = [lhs.shape[i] for i in (*dims.batch[0], *dims.free[0])]
    columns = [rhs.shape[i] for i in dims.free[1]]
    if not dims.groups:
        made = rows_by_rows(rows, _merged(rhs, *dims.right), groups, **options)
        return [made.reshape(count, *kept, *columns)]
    matrices = _merged(rhs, *dims.right)
    made = rows_by_matrices(rows, matrices, groups, is_turned=dims.is_turned, **options)
    of_rows = [lhs.shape[i] for i in dims.rows[0]]
    return [made.reshape(*kept, *of_rows, *columns)]


def _without_groups(eqn: Equation, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Return the dense product."""
    return lax.dot_general(
        lhs,
        rhs,
        eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers,
        precision=eqn.params["precision"],
        preferred_element_type=eqn.out_avals[0].dtype,
    )


def _groups(
    dims: RaggedDims,
    shape: Sequence[int],
    sizes: jax.Array,
    *,
    start: jax.Array | int,
    first: jax.Array | int,
    count: int,
) -> Groups:
    """Return where the rows of own groups are among all rows of the local left operand.

    Args:
        dims: The dims of the operands.
        shape: Of the left operand.
        sizes: Rows of each group, of all groups.
        start: The first row of the local block of the ragged dim.
        first: The first own group.
        count: How many are own.
    """
    batch, rows = ([shape[i] for i in run[0]] for run in (dims.batch, dims.rows))
    outer, inner = math.prod(rows[: dims.num_outer]), math.prod(rows[dims.num_outer + 1 :])
    length = rows[dims.num_outer]
    num_batch = math.prod(batch)
    sizes = jnp.broadcast_to(sizes, (*batch, *rows[: dims.num_outer], sizes.shape[-1]))
    sizes = sizes.reshape(num_batch, outer, -1).astype(np.int32)
    ends = jnp.cumsum(sizes, axis=-1, dtype=np.int32) - start
    starts, ends = jnp.clip(ends - sizes, 0, length), jnp.clip(ends, 0, length)
    before = length * jnp.arange(num_batch * outer, dtype=np.int32).reshape(num_batch, outer, 1)

    def own(x: jax.Array) -> jax.Array:
        x = lax.dynamic_slice_in_dim(inner * x, first, count, 2)
        order = (0, 2, 1) if dims.is_batch_first else (2, 0, 1)
        return jnp.transpose(x, order).reshape(count * num_batch, outer)

    return Groups(own(before + starts), own(jnp.maximum(ends - starts, 0)))


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
