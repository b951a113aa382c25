"""Scatters: the scattered dim is a shift-and-drop loop, index batch dims reduce the updates.

A term of a split sum over updates holds the base operand on the first part only; minimum and
maximum may take it everywhere.  A plain `scatter` keeps its index batch dims whole: which of two
updates of one element wins is decided by their order.

A single update is not dropped but replaced by one that changes nothing.  XLA turns it into a slice
and an update of the slice, merges the slice with the one that cut the operand into blocks, and
then no longer clamps its start to the block: it would write an element of the next block.
Source: seen in the HLO of `x.at[15].add(1.0)`, JAX 0.10.2 on CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule
from meshwise.rules.indexed.indexing import (
    CLIP,
    FILL_OR_DROP,
    GATHER_MODES,
    PROMISE_IN_BOUNDS,
    all_first,
    can_shift,
    is_key,
    shifted_columns,
)
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind

# How the updates of one element combine, as a reduction over the index batch dims.
_MONOID = {
    "scatter": None,
    "scatter-add": SUM,
    "scatter-sub": SUM,
    "scatter-mul": None,
    "scatter-min": "min",
    "scatter-max": "max",
}
_LINEAR = ("scatter-add", "scatter-sub")
# What an update may be to change nothing; a minimum, a maximum or a plain one repeats the operand.
_NEUTRAL = {"scatter-add": 0, "scatter-sub": 0, "scatter-mul": 1}


class _Dims(NamedTuple):
    """Where the dims of a scatter go.

    Attributes:
        window: Operand dim -> dim of the updates, for dims that stand in the updates.
        batch: Dims of the updates that come from the indices, in their order.
        inserted: Operand dims of which one element is updated, with their index column.
    """

    window: dict[int, int]
    batch: tuple[int, ...]
    inserted: dict[int, int]


def _dims(eqn: Equation) -> _Dims:
    numbers = eqn.params["dimension_numbers"]
    rank, updates = len(eqn.in_avals[0].shape), eqn.in_avals[2].shape
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(rank) if d not in gone]
    window = dict(zip(kept, numbers.update_window_dims, strict=True))
    return _Dims(
        window=window,
        batch=tuple(d for d in range(len(updates)) if d not in numbers.update_window_dims),
        inserted={
            d: k
            for k, d in enumerate(numbers.scatter_dims_to_operand_dims)
            if d in numbers.inserted_window_dims or (d in window and updates[window[d]] == 1)
        },
    )


def scatter_rule(eqn: Equation) -> LoopRule:
    """Return loops in the order: dims of the indices, of the operand."""
    numbers = eqn.params["dimension_numbers"]
    operand, indices, updates = (aval.shape for aval in eqn.in_avals)
    dims = _dims(eqn)
    monoid = _MONOID[eqn.name]
    loops = LoopList()
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    index_dims: list[tuple[int, ...]] = []
    cut: list[str] = []
    for dim, size in enumerate(indices[:-1]):
        if dim in batching.values():
            index_dims.append(loops.add(size))
        elif monoid is not None:
            index_dims.append(loops.add(size, monoid))
        else:
            index_dims.append(())
            cut.append(f"index dim {dim}")
    index_dims.append(())
    splittable = eqn.params["mode"] in GATHER_MODES and not is_key(eqn.in_avals[0])
    update_dims: list[tuple[int, ...]] = [()] * len(updates)
    for place, follows in zip(dims.batch, index_dims, strict=False):
        update_dims[place] = follows
    operand_dims: list[tuple[int, ...]] = []
    for dim, size in enumerate(operand):
        if dim in batching:
            operand_dims.append(index_dims[batching[dim]])
        elif dim in dims.window and updates[dims.window[dim]] == size:
            operand_dims.append(loops.add(size))
            update_dims[dims.window[dim]] = operand_dims[-1]
        elif dim in dims.inserted and splittable and can_shift(size):
            operand_dims.append(loops.add(size, block=True))
        else:
            operand_dims.append(())
            cut.append(f"operand dim {dim}")
    whole = tuple(operand_dims)
    return LoopRule(
        loops.done(),
        (whole, tuple(index_dims), tuple(update_dims)),
        (whole,),
        linear=((0, 2),) if eqn.name in _LINEAR else (),
        whole=", ".join(cut),
    )


def local_scatter(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Base on the first part of a split sum; indices outside the local block are dropped."""
    operand, indices, updates = operands
    rule = shards.rule
    numbers = eqn.params["dimension_numbers"]
    sums = [
        loop
        for loop, info in enumerate(rule.loops)
        if info.kind in (SUM, "or") and shards.parts(loop) > 1
    ]
    if sums:
        operand = jnp.where(all_first(shards, sums), operand, jnp.zeros_like(operand))
    shape = eqn.in_avals[0].shape
    dims = _dims(eqn)
    split = {
        column: rule.operands[0][dim][0]
        for dim, column in dims.inserted.items()
        if rule.operands[0][dim]
        and rule.loops[rule.operands[0][dim][0]].block
        and shards.parts(rule.operands[0][dim][0]) > 1
    }
    if not split:
        return rebind(eqn, (operand, indices, updates))
    updated = eqn.in_avals[2].shape
    bounds = [
        shape[d] - (updated[dims.window[d]] if d in dims.window else 1)
        for d in numbers.scatter_dims_to_operand_dims
    ]
    columns, here = shifted_columns(
        shards, indices, bounds, split, clamp=eqn.params["mode"] == CLIP
    )
    if math.prod(indices.shape[:-1]) == 1:
        kept = _unchanged(eqn, operand, columns, updates)
        updates = jnp.where(here.reshape(()), updates, kept)
        return rebind(eqn, (operand, columns, updates), mode=PROMISE_IN_BOUNDS)
    # One column beyond the end drops the whole update.
    ends = [columns[..., column] for column in range(len(bounds))]
    for column, loop in split.items():
        ends[column] = jnp.where(here, ends[column], shards.local_size(loop))
    columns = jnp.stack(ends, axis=-1)
    return rebind(
        eqn,
        (operand, columns, updates),
        mode=FILL_OR_DROP,
        indices_are_sorted=False,
        unique_indices=False,
    )


def _unchanged(
    eqn: Equation, operand: jax.Array, columns: jax.Array, updates: jax.Array
) -> jax.Array:
    """Return updates that leave the operand as it is; the indices are in range."""
    if eqn.name in _NEUTRAL:
        return jnp.full_like(updates, _NEUTRAL[eqn.name])
    numbers = eqn.params["dimension_numbers"]
    dims = _dims(eqn)
    sizes = tuple(
        updates.shape[dims.window[dim]] if dim in dims.window else 1 for dim in range(operand.ndim)
    )
    return lax.gather(
        operand,
        columns,
        lax.GatherDimensionNumbers(
            offset_dims=numbers.update_window_dims,
            collapsed_slice_dims=numbers.inserted_window_dims,
            start_index_map=numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.scatter_indices_batching_dims,
        ),
        sizes,
        mode=PROMISE_IN_BOUNDS,
    )


TABLE = {name: PrimitiveRule(scatter_rule, local_scatter) for name in _MONOID}
