"""`gather`: batch dims and windows taken in full are parallel, a lookup is a masked partial sum.

An indexed dim from which one element is taken (`table[ids]`) may be split: each device looks up
what lies in its block, gives zero elsewhere, and the sum over the devices is the value.  An index
that is out of range for the whole tensor is filled by exactly one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule
from meshwise.rules.indexed.indexing import (
    FILL_OR_DROP,
    GATHER_MODES,
    PROMISE_IN_BOUNDS,
    all_first,
    can_shift,
    columns_in_range,
    is_key,
    shifted_columns,
)
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind


class _Dims(NamedTuple):
    """Where the dims of a gather go.

    Attributes:
        window: Operand dims that stand in the result, in the order of `offset_dims`.
        batch: Dims of the result that come from the indices, in their order.
        lookup: Operand dims that are indexed with slices of one element, with their column.
    """

    window: tuple[int, ...]
    batch: tuple[int, ...]
    lookup: dict[int, int]


def _dims(eqn: Equation) -> _Dims:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    rank = len(eqn.out_avals[0].shape)
    return _Dims(
        window=tuple(d for d in range(len(sizes)) if d not in gone),
        batch=tuple(d for d in range(rank) if d not in numbers.offset_dims),
        lookup={d: k for k, d in enumerate(numbers.start_index_map) if sizes[d] == 1},
    )


def _passes_fill(eqn: Equation) -> bool:
    """Return whether terms that are each filled still sum to the fill value (0, NaN, infinity)."""
    if eqn.params["mode"] != FILL_OR_DROP:
        return True
    fill = np.asarray(eqn.params["fill_value"])
    return bool(np.array_equal(fill + fill, fill, equal_nan=fill.dtype.kind == "f"))


def gather_rule(eqn: Equation) -> LoopRule:
    """Return loops in the order: dims of the indices, of the operand."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand, indices = eqn.in_avals[0], eqn.in_avals[1]
    dims = _dims(eqn)
    loops = LoopList()
    index_dims: list[tuple[int, ...]] = [*loops.add_dims(indices.shape[:-1]), ()]
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    splittable = eqn.params["mode"] in GATHER_MODES and not is_key(operand)
    operand_dims: list[tuple[int, ...]] = []
    cut: list[int] = []
    for dim, size in enumerate(operand.shape):
        if dim in batching:
            operand_dims.append(index_dims[batching[dim]])
        elif sizes[dim] == size:
            operand_dims.append(loops.add(size))
        elif dim in dims.lookup and splittable and can_shift(size):
            operand_dims.append(loops.add(size, SUM, block=True))
        else:
            operand_dims.append(())
            cut.append(dim)
    result: list[tuple[int, ...]] = [()] * len(eqn.out_avals[0].shape)
    for place, dim in zip(numbers.offset_dims, dims.window, strict=True):
        result[place] = operand_dims[dim] if sizes[dim] == operand.shape[dim] else ()
    for place, follows in zip(dims.batch, index_dims, strict=False):
        result[place] = follows
    return LoopRule(
        loops.done(),
        (tuple(operand_dims), tuple(index_dims)),
        (tuple(result),),
        linear=((0,),) if _passes_fill(eqn) else (),
        whole=f"indexed dims {tuple(cut)}" if cut else "",
    )


def local_gather(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Shift the split columns of the indices to the local block, mask what lies outside."""
    operand, indices = operands
    global_sizes = eqn.params["slice_sizes"]
    follows, shape = shards.rule.operands[0], eqn.in_avals[0].shape
    # A window in full is taken at its local size.
    sizes = tuple(
        local if size == whole else size
        for size, whole, local in zip(global_sizes, shape, jnp.shape(operand), strict=True)
    )
    split = {
        column: follows[dim][0]
        for dim, column in _dims(eqn).lookup.items()
        if shape[dim] > 1 and follows[dim] and shards.parts(follows[dim][0]) > 1
    }
    if not split:
        return rebind(eqn, operands, slice_sizes=sizes)
    bounds = [shape[d] - global_sizes[d] for d in eqn.params["dimension_numbers"].start_index_map]
    columns, here = shifted_columns(shards, indices, bounds, split, clamp=True)
    (found,) = rebind(
        eqn,
        (operand, columns),
        slice_sizes=sizes,
        mode=PROMISE_IN_BOUNDS,
        fill_value=None,
        indices_are_sorted=False,
    )
    batch = _dims(eqn).batch

    def spread(mask: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(mask, found.shape, batch)

    zeros = jnp.zeros_like(found)
    value = jnp.where(spread(here), found, zeros)
    if eqn.params["mode"] == FILL_OR_DROP:
        fill = lax.full_like(found, eqn.params["fill_value"])
        filled = jnp.where(all_first(shards, split.values()), fill, zeros)
        value = jnp.where(spread(columns_in_range(indices, bounds)), value, filled)
    return [value]


TABLE = {"gather": PrimitiveRule(gather_rule, local_gather)}
