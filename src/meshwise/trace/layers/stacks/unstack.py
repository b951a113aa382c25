"""A step whose layers are stacked arrays under `scan`, as the same step on single layers.

Stacked arguments and results become one for each layer, the `scan` over them its bodies one after
the other, and the update works on each layer alone.  So layers can be cut, planned and placed as
if the model had been written without `scan`.

Source: docs/decisions/0014.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax import Array

from meshwise.jax_compat.jaxprs import ClosedJaxpr, Eqn, bind_equation, closed_jaxpr, scan_counts
from meshwise.jax_compat.source_lines import source_scope
from meshwise.trace.layers.equations import environment, inlined, read, run_inlined
from meshwise.trace.layers.stacks.families import (
    Family,
    Lane,
    Stackable,
    by_member,
    lanes,
    part_of,
    taken_apart,
    whole,
)
from meshwise.trace.layers.stacks.stacked_dims import Stacks, find_stacks, has_scans
from meshwise.trace.loss import bind_loss
from meshwise.trace.step import OpenStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Where a flat argument or result of the user's step is among those of single layers.

    Attributes:
        places: Positions; one for each layer of a stack.
        dim: The dim of the layers; None of what is no stack.
    """

    places: tuple[int, ...]
    dim: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstacked:
    """A step on single layers.

    Attributes:
        original: The user's step.
        step: The step on single layers; its trees are those of the user's step.
        arguments: For each flat argument of the user's step.
        results: For each flat result.
        notes: Which scans were cut apart, and which were not.
    """

    original: OpenStep
    step: OpenStep
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    notes: tuple[str, ...]


def unstacked(opened: OpenStep, parameters: Collection[int] = ()) -> Unstacked:
    """Take the stacks of a step apart; a step without scans over layers stays as it is.

    Args:
        opened: The user's step.
        parameters: Positions of flat arguments whose scans go over layers outside of losses too.

    Returns:
        The step on single layers, and where the user's arguments are in it.
    """
    alone = _alone(opened)
    if not has_scans(opened.closed.jaxpr):
        return alone
    flat = inlined(opened.closed)
    stacks = find_stacks(flat, opened.batch_dims, parameters)
    if not stacks.scans:
        return replace(alone, notes=stacks.notes)
    jaxpr = flat.jaxpr
    dims = [
        None if i in opened.batch_dims else stacks.dims.get(v) for i, v in enumerate(jaxpr.invars)
    ]
    arguments = _leaves(dims, opened.in_avals)
    in_avals = [
        _without(aval, leaf.dim)
        for aval, leaf in zip(opened.in_avals, arguments, strict=True)
        for _ in leaf.places
    ]
    of_argument = {j: i for i, j in opened.aliases}
    out_dims: list[tuple[int | None, int]] = []

    def run(*operands: Array) -> list[Array]:
        made = _Run(stacks).closed(flat, _families(arguments, operands))
        found: list[Array] = []
        out_dims.clear()
        for j, value in enumerate(made):
            if j in of_argument:
                dim = dims[of_argument[j]]
                value = _as(value, dim, np.shape(jaxpr.outvars[j].aval))
            out_dims.append(_shape_of(value))
            found += _members(value)
        return found

    closed = jax.make_jaxpr(run)(*in_avals)
    results = _leaves_of(out_dims)
    step = replace(
        opened,
        closed=closed,
        in_avals=tuple(in_avals),
        batch_dims={arguments[i].places[0]: dim for i, dim in opened.batch_dims.items()},
        aliases=tuple(
            pair
            for i, j in opened.aliases
            for pair in zip(arguments[i].places, results[j].places, strict=True)
        ),
        names=_names(opened.names, arguments),
    )
    return Unstacked(
        original=opened, step=step, arguments=arguments, results=results, notes=stacks.notes
    )


def _names(names: Sequence[str], arguments: Sequence[Leaf]) -> tuple[str, ...]:
    """Return the names of the arguments of the step on single layers."""
    return tuple(
        name if leaf.dim is None else f"{name}[{n}]"
        for name, leaf in zip(names, arguments, strict=True)
        for n in range(len(leaf.places))
    )


def _alone(opened: OpenStep) -> Unstacked:
    """Return a step that has no stacks."""
    ends = (opened.in_avals, opened.out_leaves)
    arguments, results = (tuple(Leaf(places=(n,)) for n in range(len(x))) for x in ends)
    return Unstacked(original=opened, step=opened, arguments=arguments, results=results, notes=())


def _without(aval: jax.ShapeDtypeStruct, dim: int | None) -> jax.ShapeDtypeStruct:
    if dim is None:
        return aval
    shape = (*aval.shape[:dim], *aval.shape[dim + 1 :])
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=bool(aval.weak_type))


def _leaves(dims: Sequence[int | None], avals: Sequence[jax.ShapeDtypeStruct]) -> tuple[Leaf, ...]:
    counts = [(d, 1 if d is None else a.shape[d]) for d, a in zip(dims, avals, strict=True)]
    return _leaves_of(counts)


def _leaves_of(counts: Sequence[tuple[int | None, int]]) -> tuple[Leaf, ...]:
    found: list[Leaf] = []
    start = 0
    for dim, count in counts:
        found.append(Leaf(places=tuple(range(start, start + count)), dim=dim))
        start += count
    return tuple(found)


def _families(leaves: Sequence[Leaf], operands: Sequence[Array]) -> list[Stackable]:
    found: list[Stackable] = []
    for leaf in leaves:
        members = tuple(operands[n] for n in leaf.places)
        found.append(members[0] if leaf.dim is None else Family(dim=leaf.dim, members=members))
    return found


def _members(value: Stackable) -> tuple[Array, ...]:
    return value.members if isinstance(value, Family) else (value,)


def _shape_of(value: Stackable) -> tuple[int | None, int]:
    return (value.dim, len(value.members)) if isinstance(value, Family) else (None, 1)


def _as(value: Stackable, dim: int | None, shape: Sequence[int]) -> Stackable:
    """Return a value as a family along a dim, or whole."""
    return whole(value) if dim is None else _family(value, dim, shape[dim])


def _family(value: Stackable, dim: int, count: int) -> Family:
    """Return a value as a family along a dim."""
    if isinstance(value, Family) and value.dim == dim:
        return value
    return taken_apart(whole(value), dim, count)


class _Run:
    """Runs equations on families and whole values."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks

    def closed(self, closed: ClosedJaxpr, operands: Sequence[Stackable]) -> list[Stackable]:
        """Return a flat jaxpr."""
        known = environment(closed, operands)
        for eqn in closed.jaxpr.eqns:
            made = self.equation(eqn, [read(known, atom) for atom in eqn.invars])
            known.update(zip(eqn.outvars, made, strict=True))
        return [read(known, atom) for atom in closed.jaxpr.outvars]

    def equation(self, eqn: Eqn, operands: list[Stackable]) -> list[Stackable]:
        """One equation."""
        if eqn in self.stacks.losses:
            return self._loss(eqn, operands)
        if eqn in self.stacks.scans:
            return self._scan(eqn, operands)
        families = [(n, v) for n, v in enumerate(operands) if isinstance(v, Family)]
        wanted = None if len(eqn.outvars) > 1 else self.stacks.dims.get(eqn.outvars[0])
        if families and len(operands) == 1:
            part = part_of(eqn, families[0][1])
            if part is not None:
                return [part]
        if wanted is not None and eqn.primitive.name == "iota" and not families:
            numbers = np.arange(eqn.params["shape"][0], dtype=eqn.params["dtype"])
            if eqn.params["shape"] == numbers.shape:
                return [Family(dim=0, members=tuple(numbers))]
        if families or wanted is not None:
            for lane in lanes(eqn):
                fits = all(lane.operands[n] == v.dim for n, v in families)
                if fits and (families or lane.result == wanted):
                    return [by_member(eqn, lane, operands, _count(eqn, lane))]
        return bind_equation(eqn, [whole(v) for v in operands])

    def _scan(self, eqn: Eqn, operands: Sequence[Stackable]) -> list[Stackable]:
        num_consts, num_carry = scan_counts(eqn.params)
        length = eqn.params["length"]
        body = closed_jaxpr(eqn.params["jaxpr"])
        consts = [whole(v) for v in operands[:num_consts]]
        carry = [whole(v) for v in operands[num_consts:][:num_carry]]
        with source_scope(eqn.source_info):
            sliced = [_family(v, 0, length).members for v in operands[num_consts + num_carry :]]
        rows: list[list[Array]] = []
        for k in reversed(range(length)) if eqn.params["reverse"] else range(length):
            made = run_inlined(body, [*consts, *carry, *(members[k] for members in sliced)])
            carry = made[:num_carry]
            rows.append(made[num_carry:])
        if eqn.params["reverse"]:
            rows.reverse()
        return [*carry, *(Family(dim=0, members=tuple(ys)) for ys in zip(*rows, strict=True))]

    def _loss(self, eqn: Eqn, operands: Sequence[Stackable]) -> list[Stackable]:
        loss = self.stacks.losses[eqn]
        given = [
            _as(value, self.stacks.dims.get(v), v.aval.shape)
            for value, v in zip(operands, loss.jaxpr.invars, strict=True)
        ]
        leaves = _leaves_of([_shape_of(value) for value in given])
        shapes: list[tuple[int | None, int]] = []

        def run(*flat: Array) -> list[Array]:
            made = self.closed(loss, _families(leaves, flat))
            shapes[:] = [_shape_of(value) for value in made]
            return [x for value in made for x in _members(value)]

        flat = [x for value in given for x in _members(value)]
        closed = jax.make_jaxpr(run)(*flat)
        wrt = eqn.params["wrt"]
        made = bind_loss(closed, [n for w in wrt for n in leaves[w].places], flat)
        outs = _leaves_of([*shapes, *(_shape_of(given[w]) for w in wrt)])
        return _families(outs, made)


def _count(eqn: Eqn, lane: Lane) -> int:
    """Return how many slices there are along a lane."""
    for v, dim in zip(eqn.invars, lane.operands, strict=True):
        if dim is not None:
            return v.aval.shape[dim]
    assert lane.result is not None
    return eqn.outvars[0].aval.shape[lane.result]
