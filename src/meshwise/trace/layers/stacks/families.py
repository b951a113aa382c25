"""Stacks of values, one for each layer, and equations that work on each of them alone.

A *family* is an array taken apart along a dim.  A *lane* of an equation is a dim of its operands
and results along which it treats each slice alone, or takes their sum, product or extreme.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from meshwise.jax_compat.jaxprs import Eqn, bind_equation
from meshwise.jax_compat.source_lines import source_scope
from meshwise.rules import elementwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An array as its slices.

    Attributes:
        dim: The dim along which it was taken apart.
        members: The slices, without that dim.
    """

    dim: int
    members: tuple[Array, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A dim along which an equation treats slices alone.

    Attributes:
        operands: For each operand its dim; None where every slice takes the whole operand.
        result: Dim of the result; None where slices are joined.
    """

    operands: tuple[int | None, ...]
    result: int | None


# An array, whole or taken apart.
Stackable: TypeAlias = Array | Family

_JOINS: Mapping[str, Callable[[Array, Array], Array]] = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
}


def lanes(eqn: Eqn) -> Iterator[Lane]:
    """Yield all lanes of an equation; none of one that is not known here."""
    name = eqn.primitive.name
    if name in elementwise.TABLE and name != "bitcast_convert_type":
        yield from _elementwise(eqn)
    elif name in _JOINS:
        yield from _joined(eqn)
    elif name in _REARRANGED:
        yield from _REARRANGED[name](eqn)


def _elementwise(eqn: Eqn) -> Iterator[Lane]:
    result = eqn.outvars[0].aval.shape
    shapes = [v.aval.shape for v in eqn.invars]
    for dim, size in enumerate(result):
        if size > 1:
            follows = (len(s) == len(result) and s[dim] == size for s in shapes)
            yield Lane(operands=tuple(dim if f else None for f in follows), result=dim)


def _joined(eqn: Eqn) -> Iterator[Lane]:
    axes = eqn.params["axes"]
    for dim in range(len(eqn.invars[0].aval.shape)):
        after = None if dim in axes else dim - sum(a < dim for a in axes)
        yield Lane(operands=(dim,), result=after)


def _broadcast(eqn: Eqn) -> Iterator[Lane]:
    shape, targets = eqn.invars[0].aval.shape, eqn.params["broadcast_dimensions"]
    for result, size in enumerate(eqn.params["shape"]):
        dim = targets.index(result) if result in targets else None
        is_stretched = dim is not None and shape[dim] != size
        if size > 1:
            yield Lane(operands=(None if is_stretched else dim,), result=result)


def _transpose(eqn: Eqn) -> Iterator[Lane]:
    for result, dim in enumerate(eqn.params["permutation"]):
        yield Lane(operands=(dim,), result=result)


def _squeeze(eqn: Eqn) -> Iterator[Lane]:
    gone = eqn.params["dimensions"]
    for dim in range(len(eqn.invars[0].aval.shape)):
        if dim not in gone:
            yield Lane(operands=(dim,), result=dim - sum(g < dim for g in gone))


def _reshape(eqn: Eqn) -> Iterator[Lane]:
    before, after = eqn.invars[0].aval.shape, eqn.params["new_sizes"]
    for dim, size in enumerate(before):
        left = math.prod(before[:dim])
        for result, other in enumerate(after):
            if size == other > 1 and math.prod(after[:result]) == left:
                yield Lane(operands=(dim,), result=result)


def _dot_general(eqn: Eqn) -> Iterator[Lane]:
    batch = eqn.params["dimension_numbers"][1]
    for result, dims in enumerate(zip(*batch, strict=True)):
        yield Lane(operands=dims, result=result)


_REARRANGED: Mapping[str, Callable[[Eqn], Iterator[Lane]]] = {
    "broadcast_in_dim": _broadcast,
    "dot_general": _dot_general,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
}


def by_member(eqn: Eqn, lane: Lane, operands: Sequence[Stackable], count: int) -> Stackable:
    """Return an equation, slice by slice.

    Args:
        eqn: The equation.
        lane: One of its lanes.
        operands: Families along the lane, and whole values.
        count: Number of slices.

    Returns:
        A family, or the joined value.
    """
    with source_scope(eqn.source_info):
        taken = [
            value if dim is None or isinstance(value, Family) else taken_apart(value, dim, count)
            for value, dim in zip(operands, lane.operands, strict=True)
        ]
        alone = [value for value in taken if not isinstance(value, Family)]
        if len(alone) == len(taken):
            return Family(dim=lane.result or 0, members=(_alone(eqn, lane, alone),) * count)
        made = [
            _alone(eqn, lane, [v.members[k] if isinstance(v, Family) else v for v in taken])
            for k in range(count)
        ]
        if lane.result is not None:
            return Family(dim=lane.result, members=tuple(made))
        return functools.reduce(_JOINS[eqn.primitive.name], made)


def _alone(eqn: Eqn, lane: Lane, operands: list[Array]) -> Array:
    """Return an equation on one slice."""
    name, dim = eqn.primitive.name, lane.operands[0]
    if name in _JOINS:
        assert dim is not None
        axes = tuple(a - (a > dim) for a in eqn.params["axes"] if a != dim)
        return (
            eqn.primitive.bind(*operands, **{**eqn.params, "axes": axes}) if axes else operands[0]
        )
    if name == "broadcast_in_dim":
        return _broadcast_alone(eqn, lane, operands[0])
    if name == "transpose":
        order = (d - (d > (dim or 0)) for d in eqn.params["permutation"] if d != dim)
        return lax.transpose(operands[0], tuple(order))
    if name in ("squeeze", "reshape"):
        shape = list(eqn.outvars[0].aval.shape)
        del shape[lane.result or 0]
        return lax.reshape(operands[0], shape)
    if name == "dot_general":
        return _dot_alone(eqn, lane, operands)
    # An operand that is stretched along the lane has a dim of size 1 there.
    rank = len(eqn.outvars[0].aval.shape)
    operands = [
        lax.squeeze(x, (lane.result or 0,)) if d is None and jnp.ndim(x) == rank else x
        for x, d in zip(operands, lane.operands, strict=True)
    ]
    return bind_equation(eqn, operands)[0]


def _broadcast_alone(eqn: Eqn, lane: Lane, operand: Array) -> Array:
    assert lane.result is not None
    shape, targets = list(eqn.params["shape"]), list(eqn.params["broadcast_dimensions"])
    if lane.result in targets:
        if lane.operands[0] is None:
            operand = lax.squeeze(operand, (targets.index(lane.result),))
        targets.remove(lane.result)
    del shape[lane.result]
    return lax.broadcast_in_dim(operand, shape, [t - (t > lane.result) for t in targets])


def _dot_alone(eqn: Eqn, lane: Lane, operands: Sequence[Array]) -> Array:
    contracted, batch = eqn.params["dimension_numbers"]

    def rest(dims: Sequence[int], gone: int | None) -> tuple[int, ...]:
        assert gone is not None
        return tuple(d - (d > gone) for d in dims if d != gone)

    numbers = tuple(
        tuple(rest(dims, gone) for dims, gone in zip(both, lane.operands, strict=True))
        for both in (contracted, batch)
    )
    return eqn.primitive.bind(*operands, **{**eqn.params, "dimension_numbers": numbers})


def taken_apart(value: Array, dim: int, count: int) -> Family:
    """Return a whole value as a family."""
    members = (lax.index_in_dim(value, k, dim, keepdims=False) for k in range(count))
    return Family(dim=dim, members=tuple(members))


def whole(value: Stackable) -> Array:
    """Return a value as one array."""
    return jnp.stack(value.members, axis=value.dim) if isinstance(value, Family) else value


def part_of(eqn: Eqn, value: Family) -> Stackable | None:
    """Return what a `slice` or `squeeze` along its dim takes of a family; None if it is neither."""
    params = eqn.params
    if eqn.primitive.name == "squeeze" and value.dim in params["dimensions"]:
        others = tuple(d - (d > value.dim) for d in params["dimensions"] if d != value.dim)
        return lax.squeeze(value.members[0], others)
    if eqn.primitive.name != "slice":
        return None
    start, limit = list(params["start_indices"]), list(params["limit_indices"])
    strides = list(params["strides"] or [1] * len(start))
    chosen = slice(*(part.pop(value.dim) for part in (start, limit, strides)))
    members = (lax.slice(x, start, limit, strides) for x in value.members[chosen])
    return Family(dim=value.dim, members=tuple(members))
