"""Primitives that only rearrange elements; all are linear, so partial sums pass.

A reshape is written in *atoms*, the loops that both shapes have in common, major to minor; a dim
that is a product of several atoms lists them.  Splitting a minor atom alone would not be a block,
which `graph.loops.dim_axes` refuses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from meshwise.graph.loops import DimMap, Loop, LoopRule
from meshwise.rules.loop_list import LoopList, dims_like
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, no_flop, rebind

_LINEAR = ((0,),)
_INT32_LIMIT = 2**31


def broadcast_rule(eqn: Equation) -> LoopRule:
    """Each result dim is a loop; an operand dim follows it unless it is stretched."""
    loops = LoopList()
    operand, result = eqn.in_avals[0].shape, eqn.out_avals[0].shape
    results = loops.add_dims(result)
    targets = eqn.params["broadcast_dimensions"]
    follows = tuple(
        results[dim] if size == result[dim] else ()
        for size, dim in zip(operand, targets, strict=True)
    )
    # Sizes of a dynamic shape would be further operands; JAX no longer makes them.
    return LoopRule(loops.done(), (follows,), (tuple(results),), linear=_LINEAR)


def local_broadcast(
    eqn: Equation, shards: Shards, operands: Sequence[jax.Array]
) -> list[jax.Array]:
    """Broadcast to the local shape."""
    return rebind(eqn, operands, shape=shards.result_shape(eqn), sharding=None)


def common_atoms(
    before: Sequence[int], after: Sequence[int]
) -> tuple[tuple[Loop, ...], DimMap, DimMap, bool]:
    """Return loops that two shapes of equal element count share.

    Walks both shapes from the major end; at equal prefixes the greatest common divisor of what
    is left of the two current dims is an atom.  Where it is 1 the dims stay whole until the
    prefixes meet again.  Without elements there is no such place: rows of nothing are followed as
    far as the prefixes before the first 0 agree, so that they still separate.

    Returns:
        Atoms, atoms of each dim before and after, and whether some dim is not fully covered.
    """
    is_empty = 0 in before
    atoms: list[Loop] = []
    maps: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = (
        [() for _ in before],
        [() for _ in after],
    )
    place = [0, 0]
    left = [1, 1]
    shapes = tuple(tuple(itertools.takewhile(bool, shape)) for shape in (before, after))
    stuck = is_empty and any(size > 1 for size in before[len(shapes[0]) :])

    def refill(side: int) -> None:
        while left[side] == 1 and place[side] < len(shapes[side]):
            left[side] = shapes[side][place[side]]
            place[side] += 1

    while True:
        refill(0)
        refill(1)
        if left[0] == 1 and left[1] == 1:
            break
        atom = math.gcd(left[0], left[1])
        if atom > 1:
            for side in (0, 1):
                dim = place[side] - 1
                maps[side][dim] = (*maps[side][dim], len(atoms))
                left[side] //= atom
            atoms.append(Loop(atom))
            continue
        stuck = True
        if is_empty:
            break
        while left[0] != left[1]:
            side = 0 if left[0] < left[1] else 1
            left[side] *= shapes[side][place[side]]
            place[side] += 1
        left = [1, 1]
    return tuple(atoms), tuple(maps[0]), tuple(maps[1]), stuck


def reshape_rule(eqn: Equation) -> LoopRule:
    """Return atoms of the two shapes; see `common_atoms`."""
    before, after = eqn.in_avals[0].shape, eqn.out_avals[0].shape
    order = eqn.params.get("dimensions") or range(len(before))
    atoms, permuted, result, stuck = common_atoms([before[dim] for dim in order], after)
    operand = tuple(permuted[list(order).index(dim)] for dim in range(len(before)))
    whole = f"{before} and {after} have no common factors" if stuck else ""
    return LoopRule(atoms, (operand,), (result,), linear=_LINEAR, whole=whole)


def local_reshape(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Reshape to the local shape."""
    return rebind(eqn, operands, new_sizes=shards.result_shape(eqn), sharding=None)


def transpose_rule(eqn: Equation) -> LoopRule:
    """Each dim is a loop."""
    loops = LoopList()
    dims = loops.add_dims(eqn.in_avals[0].shape)
    result = tuple(dims[dim] for dim in eqn.params["permutation"])
    return LoopRule(loops.done(), (tuple(dims),), (result,), linear=_LINEAR)


def squeeze_rule(eqn: Equation) -> LoopRule:
    """Each dim that stays is a loop."""
    loops = LoopList()
    shape = eqn.in_avals[0].shape
    dims = loops.add_dims(shape)
    gone = {dim % len(shape) for dim in eqn.params["dimensions"]} if shape else set()
    result = tuple(axes for dim, axes in enumerate(dims) if dim not in gone)
    return LoopRule(loops.done(), (tuple(dims),), (result,), linear=_LINEAR)


def rev_rule(eqn: Equation) -> LoopRule:
    """Dims that are not reversed are loops."""
    loops = LoopList()
    dims = tuple(loops.add_dims(eqn.in_avals[0].shape, eqn.params["dimensions"]))
    return LoopRule(loops.done(), (dims,), (dims,), linear=_LINEAR, whole="reversed dims")


def iota_rule(eqn: Equation) -> LoopRule:
    """Each result dim is a loop."""
    loops = LoopList()
    shape = eqn.out_avals[0].shape
    # Global indices are int32.
    huge = [dim for dim, size in enumerate(shape) if size >= _INT32_LIMIT]
    result = tuple(loops.add_dims(shape, huge))
    operands = tuple(dims_like(aval.shape) for aval in eqn.in_avals)
    return LoopRule(loops.done(), operands, (result,))


def local_iota(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return global indices of the local iterations."""
    shape = shards.result_shape(eqn)
    dim = eqn.params["dimension"]
    follows = shards.rule.results[0][dim]
    if not follows or shards.parts(follows[0]) == 1:
        return rebind(eqn, operands, shape=shape, sharding=None)
    index = shards.global_index(follows[0]).astype(eqn.params["dtype"])
    return [lax.broadcast_in_dim(index, shape, (dim,))]


def empty_rule(eqn: Equation) -> LoopRule:
    """Each result dim is a loop."""
    loops = LoopList()
    result = tuple(loops.add_dims(eqn.out_avals[0].shape))
    return LoopRule(loops.done(), (), (result,))


def local_empty(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return an empty tensor of the shape of the local result."""
    return rebind(eqn, operands, shape=shards.result_shape(eqn), out_sharding=None)


def tile_rule(eqn: Equation) -> LoopRule:
    """A result dim is (repetition, index in the operand), major to minor."""
    loops = LoopList()
    shape, reps = eqn.in_avals[0].shape, eqn.params["reps"]
    operand: list[tuple[int, ...]] = []
    result: list[tuple[int, ...]] = []
    for size, rep in zip(shape, reps, strict=True):
        repetition = loops.add(rep) if size else ()
        operand.append(loops.add(size))
        result.append((*repetition, *operand[-1]))
    return LoopRule(loops.done(), (tuple(operand),), (tuple(result),), linear=_LINEAR)


def local_tile(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Repeat the local tile as often as the local result is longer."""
    local = shards.result_shape(eqn)
    have = jnp.shape(operands[0])
    reps = tuple(
        rep if not size else want // size
        for rep, want, size in zip(eqn.params["reps"], local, have, strict=True)
    )
    return rebind(eqn, operands, reps=reps)


def stack_rule(eqn: Equation) -> LoopRule:
    """All dims are loops but the new one."""
    loops = LoopList()
    dims = loops.add_dims(eqn.in_avals[0].shape)
    result = list(dims)
    result.insert(eqn.params["axis"], ())
    count = len(eqn.in_avals)
    return LoopRule(
        loops.done(),
        (tuple(dims),) * count,
        (tuple(result),),
        linear=(tuple(range(count)),),
        whole="the new dim of a stack",
    )


def unstack_rule(eqn: Equation) -> LoopRule:
    """All dims are loops but the one that is taken apart."""
    loops = LoopList()
    axis = eqn.params["axis"]
    dims = loops.add_dims(eqn.in_avals[0].shape, (axis,))
    result = tuple(d for i, d in enumerate(dims) if i != axis)
    return LoopRule(
        loops.done(),
        (tuple(dims),),
        (result,) * len(eqn.out_avals),
        linear=_LINEAR,
        whole="the dim of an unstack",
    )


TABLE = {
    "broadcast_in_dim": PrimitiveRule(broadcast_rule, local_broadcast, no_flop),
    "reshape": PrimitiveRule(reshape_rule, local_reshape, no_flop),
    "transpose": PrimitiveRule(transpose_rule, flop=no_flop),
    "squeeze": PrimitiveRule(squeeze_rule, flop=no_flop),
    "rev": PrimitiveRule(rev_rule, flop=no_flop),
    "iota": PrimitiveRule(iota_rule, local_iota, no_flop),
    "empty": PrimitiveRule(empty_rule, local_empty, no_flop),
    "tile": PrimitiveRule(tile_rule, local_tile, no_flop),
    "stack": PrimitiveRule(stack_rule, flop=no_flop),
    "unstack": PrimitiveRule(unstack_rule, flop=no_flop),
}
