"""Slices with static or dynamic starts, padding, joining, splitting.

A dim that is taken whole is a loop; a dim that is cut or joined stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from meshwise.graph.loops import LoopRule
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


def local_slice(eqn: Equation, shards: Shards, operands: Sequence[Any]) -> list[Any]:
    """Whole dims end at their local size."""
    local = shards.local_shape(eqn.in_avals[0].shape, shards.rule.operands[0])
    follows = shards.rule.operands[0]
    limits = tuple(
        local[dim] if follows[dim] else limit
        for dim, limit in enumerate(eqn.params["limit_indices"])
    )
    return rebind(eqn, operands, limit_indices=limits)


def dynamic_slice_rule(eqn: Equation) -> LoopRule:
    """Dims taken whole are loops; their start is clamped to 0 whatever the index says."""
    loops = LoopList()
    shape = eqn.in_avals[0].shape
    cut = [dim for dim, size in enumerate(shape) if eqn.out_avals[0].shape[dim] != size]
    dims = tuple(loops.add_dims(shape, cut))
    starts = tuple(dims_like(aval.shape) for aval in eqn.in_avals[1:])
    return LoopRule(loops.done(), (dims, *starts), (dims,), linear=((0,),), whole=_cut_note(cut))


def local_dynamic_slice(eqn: Equation, shards: Shards, operands: Sequence[Any]) -> list[Any]:
    """Whole dims are taken at their local size, from 0: what any start there is clamped to.

    XLA merges the slice with the one that cut the operand into blocks and forgets to clamp.
    """
    operand, *starts = operands
    follows = shards.rule.operands[0]
    starts = [
        jnp.zeros_like(start) if loops else start
        for start, loops in zip(starts, follows, strict=True)
    ]
    return rebind(eqn, (operand, *starts), slice_sizes=shards.result_shape(eqn))


def dynamic_update_slice_rule(eqn: Equation) -> LoopRule:
    """Dims in which the update is as long as the operand are loops."""
    loops = LoopList()
    shape, update = eqn.in_avals[0].shape, eqn.in_avals[1].shape
    cut = [dim for dim, size in enumerate(shape) if update[dim] != size]
    dims = tuple(loops.add_dims(shape, cut))
    starts = tuple(dims_like(aval.shape) for aval in eqn.in_avals[2:])
    return LoopRule(
        loops.done(), (dims, dims, *starts), (dims,), linear=((0, 1),), whole=_cut_note(cut)
    )


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
    "dynamic_update_slice": PrimitiveRule(dynamic_update_slice_rule, flop=no_flop),
    "pad": PrimitiveRule(pad_rule, flop=no_flop),
    "concatenate": PrimitiveRule(concatenate_rule, flop=no_flop),
    "split": PrimitiveRule(split_rule, flop=no_flop),
}
