"""`ragged_dot_general`: rows in groups, each group with a matrix of its own.

The ragged dim may be cut into blocks: the sizes of the groups inside a block follow from those of
all.  The groups may be split too (expert parallelism without capacities): each device has the rows
of all groups and multiplies those of its own, so that the products are partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind


def ragged_dot_rule(eqn: Equation) -> LoopRule:
    """Return loops in the order: batch, free dims of the left, of the right, contracted, groups."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    lhs, rhs, sizes = (aval.shape for aval in eqn.in_avals)
    loops = LoopList()
    left: list[tuple[int, ...]] = [()] * len(lhs)
    right: list[tuple[int, ...]] = [()] * len(rhs)
    result: list[tuple[int, ...]] = []
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        # In groups of the batch the rows of one group are those of others: whole.
        left[i] = right[j] = () if i == ragged else loops.add(lhs[i])
        result.append(left[i])
    lhs_free = [i for i in range(len(lhs)) if i not in (*lhs_batch, *lhs_contract)]
    taken = (*rhs_batch, *rhs_contract, *numbers.rhs_group_dimensions)
    for i in lhs_free:
        left[i] = loops.add(lhs[i], block=i == ragged)
        result.append(left[i])
    for j in range(len(rhs)):
        if j not in taken:
            right[j] = loops.add(rhs[j])
            result.append(right[j])
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        left[i] = right[j] = loops.add(lhs[i], SUM, block=i == ragged)
    whole = ""
    if ragged in lhs_batch:
        whole = "the groups"
    elif ragged in lhs_contract:
        result.insert(0, loops.add(sizes[-1], block=True))
    else:
        (group,) = numbers.rhs_group_dimensions
        right[group] = loops.add(sizes[-1], SUM, block=True)
    of_sizes = [left[i] for i in _dims_of_sizes(numbers, lhs_free)] if len(sizes) > 1 else []
    return LoopRule(
        loops.done(),
        (tuple(left), tuple(right), (*of_sizes, ())),
        (tuple(result),),
        linear=((0,), (1,)),
        whole=whole,
    )


def _dims_of_sizes(numbers: lax.RaggedDotDimensionNumbers, lhs_free: Sequence[int]) -> list[int]:
    """Return the dims of the left operand that the sizes of the groups may have too."""
    (lhs_contract, _), (lhs_batch, _) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    kind = next(dims for dims in (lhs_batch, lhs_contract, lhs_free) if ragged in dims)
    outer = list(kind[: list(kind).index(ragged)])
    return outer if ragged in lhs_batch else [*lhs_batch, *outer]


def local_ragged_dot(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """With the sizes of the groups inside the local block of the ragged dim, and of own groups."""
    lhs, rhs, sizes = operands
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (ragged,) = numbers.lhs_ragged_dimensions
    follows = shards.rule.operands[0][ragged]
    if follows and shards.parts(follows[0]) > 1:
        start, length = shards.block_start(follows[0]), shards.local_size(follows[0])
        ends = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype) - start
        sizes = jnp.clip(ends, 0, length) - jnp.clip(ends - sizes, 0, length)
        sizes = sizes.astype(operands[2].dtype)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    is_contracted = ragged in lhs_contract
    groups = numbers.rhs_group_dimensions
    split = shards.rule.results[0][0] if is_contracted else ()
    split = shards.rule.operands[1][groups[0]] if groups else split
    if not split or shards.parts(split[0]) == 1:
        return rebind(eqn, (lhs, rhs, sizes), out_sharding=None)
    first, count = shards.block_start(split[0]), shards.local_size(split[0])
    own = lax.dynamic_slice_in_dim(sizes, first, count, -1)
    # The rows of own groups come first; those behind them belong to no group.
    before = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype) - sizes
    shift = lax.dynamic_index_in_dim(before, first, -1, keepdims=False)
    free = [i for i in range(lhs.ndim) if i not in (*lhs_batch, *lhs_contract)]
    dims = _dims_of_sizes(numbers, free)[: shift.ndim]
    lhs = _rolled(lhs, shift, ragged, dims)
    if is_contracted:
        other = dict(zip((*lhs_batch, *lhs_contract), (*rhs_batch, *rhs_contract), strict=True))
        rhs = _rolled(rhs, shift, other[ragged], [other[i] for i in dims])
        return rebind(eqn, (lhs, rhs, own), out_sharding=None)
    (out,) = rebind(eqn, (lhs, rhs, own), out_sharding=None)
    kept = [*lhs_batch, *free]
    rows, dims = kept.index(ragged), [kept.index(i) for i in dims]
    is_own = lax.broadcasted_iota(own.dtype, out.shape, rows) < _spread(own.sum(-1), out, dims)
    return [_rolled(jnp.where(is_own, out, jnp.zeros_like(out)), -shift, rows, dims)]


def _rolled(x: jax.Array, shift: jax.Array, dim: int, dims: Sequence[int]) -> jax.Array:
    """Return an array whose row `shift` is now row 0; `dims` are those that the shift has."""
    size = x.shape[dim]
    rows = lax.broadcasted_iota(shift.dtype, [size if i == dim else 1 for i in range(x.ndim)], dim)
    return jnp.take_along_axis(x, (rows + _spread(shift, x, dims)) % size, dim)


def _spread(values: jax.Array, like: jax.Array, dims: Sequence[int]) -> jax.Array:
    """Return values whose dims are these dims of another array, with 1 for each of the others."""
    shape = [like.shape[i] if i in dims else 1 for i in range(like.ndim)]
    return jnp.transpose(values, sorted(range(len(dims)), key=dims.__getitem__)).reshape(shape)


def ragged_dot_flop(eqn: Equation) -> float:
    """2 x rows x columns x contracted: every row belongs to one group.

    Where groups are split each device has its share of the rows if the groups are equally large.

    XLA:CPU has no ragged product; JAX gives it a dense one, once for each group.
    """
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (lhs_contract, _), _ = numbers.dot_dimension_numbers
    lhs, out = eqn.in_avals[0].shape, eqn.out_avals[0].shape
    contracted = math.prod(lhs[i] for i in lhs_contract)
    groups = out[0] if numbers.lhs_ragged_dimensions[0] in lhs_contract and out else 1
    return 2.0 * math.prod(out) * contracted / max(1, groups)


TABLE = {
    "ragged_dot_general": PrimitiveRule(
        ragged_dot_rule, local_ragged_dot, ragged_dot_flop, heavy=True
    )
}
