"""`ragged_dot_general`: rows in groups, each group with a matrix of its own; groups stay whole.

The ragged dim may be cut into blocks: the sizes of the groups inside a block follow from those of
all.  Splitting the groups would leave each device as many rows to walk as before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind


def ragged_dot_rule(eqn: Equation) -> LoopRule:
    """Return loops in the order: batch, free dims of the left, of the right, contracted."""
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
    if ragged in lhs_contract:
        result.insert(0, ())
    # The dims in front of the ragged one that the sizes of the groups may have too.
    kind = next(dims for dims in (lhs_batch, lhs_contract, lhs_free) if ragged in dims)
    outer = list(kind[: list(kind).index(ragged)])
    before = outer if ragged in lhs_batch else [*lhs_batch, *outer]
    of_sizes = [left[i] for i in before] if len(sizes) > 1 else []
    return LoopRule(
        loops.done(),
        (tuple(left), tuple(right), (*of_sizes, ())),
        (tuple(result),),
        linear=((0,), (1,)),
        whole="the groups",
    )


def local_ragged_dot(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """With the sizes of the groups inside the local block of the ragged dim."""
    lhs, rhs, sizes = operands
    (ragged,) = eqn.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions
    follows = shards.rule.operands[0][ragged]
    if follows and shards.parts(follows[0]) > 1:
        start, length = shards.block_start(follows[0]), shards.local_size(follows[0])
        ends = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype) - start
        sizes = jnp.clip(ends, 0, length) - jnp.clip(ends - sizes, 0, length)
        sizes = sizes.astype(operands[2].dtype)
    return rebind(eqn, (lhs, rhs, sizes), out_sharding=None)


def ragged_dot_flop(eqn: Equation) -> float:
    """2 x rows x columns x contracted: every row belongs to one group.

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
