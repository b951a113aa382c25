"""Slices with static or dynamic starts, padding, joining, splitting.

A dim that is taken whole is a loop; a dim that is cut or joined stays whole.  Where one element of
a dim is read or written at a dynamic place, the device that holds it does so: a read is a masked
partial sum, a write leaves the other blocks as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwise.graph.layout import SUM
from meshwise.graph.loops import PARALLEL, LoopRule
from meshwise.rules.indexed.indexing import can_shift, is_key
from meshwise.rules.loop_list import LoopList, dims_like
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, no_flop, rebind


def _cut_note(dims: Sequence[int]) -> str:
    return f"dims {tuple(dims)} are cut" if dims else ""


def slice_rule(eqn: Equation) -> LoopRule:
    """Dims taken whole are loops."""
    loops = LoopList()
    shape = eqn.in_avals[0].shape
    # As long as the operand's dim means start 0 and stride 1.
    cut = [dim for dim, size in enumerate(shape) if eqn.out_avals[0].shape[dim] != size]
    dims = tuple(loops.add_dims(shape, cut))
    return LoopRule(loops.done(), (dims,), (dims,), linear=((0,),), whole=_cut_note(cut))


def local_slice(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Whole dims end at their local size."""
    local = shards.local_shape(eqn.in_avals[0].shape, shards.rule.operands[0])
    follows = shards.rule.operands[0]
    limits = tuple(
        local[dim] if follows[dim] else limit
        for dim, limit in enumerate(eqn.params["limit_indices"])
    )
    return rebind(eqn, operands, limit_indices=limits)


def _dynamic_dims(
    eqn: Equation, part: Sequence[int], kind: str
) -> tuple[LoopList, list[tuple[int, ...]], list[tuple[int, ...]], str]:
    """Return loops of a tensor of which a part is read or written, and of the part."""
    loops = LoopList()
    operand = eqn.in_avals[0]
    of_operand: list[tuple[int, ...]] = []
    of_part: list[tuple[int, ...]] = []
    cut: list[int] = []
    for dim, (size, taken) in enumerate(zip(operand.shape, part, strict=True)):
        if taken == size:
            of_operand.append(loops.add(size))
            of_part.append(of_operand[-1])
            continue
        one = taken == 1 and can_shift(size) and not is_key(operand)
        of_operand.append(loops.add(size, kind, block=True) if one else ())
        of_part.append(())
        if not one:
            cut.append(dim)
    return loops, of_operand, of_part, _cut_note(cut)


def _block_starts(
    shards: Shards, shape: Sequence[int], part: Sequence[int], starts: Sequence[jax.Array]
) -> tuple[list[jax.Array], jax.Array | None]:
    """Return starts in the local blocks, and whether this device holds the element; None if all do.

    Whole dims are taken from 0, what any start there is clamped to.  XLA merges the slice with the
    one that cut the operand into blocks and forgets to clamp.
    """
    follows = shards.rule.operands[0]
    cut = [
        dim
        for dim, loops in enumerate(follows)
        if loops and part[dim] != shape[dim] and shards.parts(loops[0]) > 1
    ]
    if not cut:
        pairs = zip(starts, follows, shape, part, strict=True)
        return [
            jnp.zeros_like(start) if loops and size == taken else start
            for start, loops, size, taken in pairs
        ], None
    here: jax.Array | None = None
    places: list[jax.Array] = []
    for dim, start in enumerate(starts):
        bound = min(shape[dim] - part[dim], int(jnp.iinfo(start.dtype).max))
        place = jnp.clip(start, 0, bound).astype(_place_type(shape))
        if dim in cut:
            (loop,) = follows[dim]
            size = shards.local_size(loop)
            place = place - shards.block_start(loop)
            inside = (place >= 0) & (place < size)
            here = inside if here is None else here & inside
            place = jnp.clip(place, 0, size - 1)
        places.append(place)
    return places, here


def _place_type(shape: Sequence[int]) -> type[np.generic]:
    # The primitives want all starts of one type.
    return np.int32 if all(map(can_shift, shape)) else np.int64


def dynamic_slice_rule(eqn: Equation) -> LoopRule:
    """Dims taken whole are loops; a dim of which one element is taken is a masked sum."""
    loops, dims, result, note = _dynamic_dims(eqn, eqn.out_avals[0].shape, SUM)
    starts = tuple(dims_like(aval.shape) for aval in eqn.in_avals[1:])
    return LoopRule(loops.done(), (tuple(dims), *starts), (tuple(result),), ((0,),), note)


def local_dynamic_slice(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """Return whole dims at their local size; zero where another device holds the element."""
    operand, *starts = operands
    places, here = _block_starts(shards, eqn.in_avals[0].shape, eqn.out_avals[0].shape, starts)
    (found,) = rebind(eqn, (operand, *places), slice_sizes=shards.result_shape(eqn))
    return [found if here is None else jnp.where(here, found, jnp.zeros_like(found))]


def dynamic_update_slice_rule(eqn: Equation) -> LoopRule:
    """Dims in which the update is as long as the operand or has one element are loops."""
    loops, dims, update, note = _dynamic_dims(eqn, eqn.in_avals[1].shape, PARALLEL)
    starts = tuple(dims_like(aval.shape) for aval in eqn.in_avals[2:])
    operands = (tuple(dims), tuple(update), *starts)
    return LoopRule(loops.done(), operands, (tuple(dims),), ((0, 1),), note)


def local_dynamic_update_slice(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """Where another device holds the element, what is there is written again."""
    operand, update, *starts = operands
    places, here = _block_starts(shards, eqn.in_avals[0].shape, eqn.in_avals[1].shape, starts)
    if here is not None:
        update = jnp.where(here, update, lax.dynamic_slice(operand, places, update.shape))
    return rebind(eqn, (operand, update, *places))


def pad_rule(eqn: Equation) -> LoopRule:
    """Dims without padding are loops."""
    loops = LoopList()
    config = eqn.params["padding_config"]
    cut = [dim for dim, padding in enumerate(config) if any(padding)]
    dims = tuple(loops.add_dims(eqn.in_avals[0].shape, cut))
    return LoopRule(loops.done(), (dims, ()), (dims,), linear=((0, 1),), whole=_cut_note(cut))


def concatenate_rule(eqn: Equation) -> LoopRule:
    """All dims are loops but the joined one."""
    loops = LoopList()
    joined = eqn.params["dimension"]
    dims = tuple(loops.add_dims(eqn.in_avals[0].shape, (joined,)))
    count = len(eqn.in_avals)
    return LoopRule(
        loops.done(),
        (dims,) * count,
        (dims,),
        linear=(tuple(range(count)),),
        whole="the joined dim" if count > 1 else "",
    )


def split_rule(eqn: Equation) -> LoopRule:
    """All dims are loops but the one that is split up."""
    loops = LoopList()
    axis = eqn.params["axis"]
    dims = tuple(loops.add_dims(eqn.in_avals[0].shape, (axis,)))
    return LoopRule(
        loops.done(),
        (dims,),
        (dims,) * len(eqn.out_avals),
        linear=((0,),),
        whole=_cut_note([axis]),
    )


TABLE = {
    "slice": PrimitiveRule(slice_rule, local_slice, no_flop),
    "dynamic_slice": PrimitiveRule(dynamic_slice_rule, local_dynamic_slice, no_flop),
    "dynamic_update_slice": PrimitiveRule(
        dynamic_update_slice_rule, local_dynamic_update_slice, no_flop
    ),
    "pad": PrimitiveRule(pad_rule, flop=no_flop),
    "concatenate": PrimitiveRule(concatenate_rule, flop=no_flop),
    "split": PrimitiveRule(split_rule, flop=no_flop),
}
