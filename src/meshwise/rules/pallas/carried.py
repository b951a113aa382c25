"""What a kernel carries from one block of the grid to the next, in scratch memory.

Blocks run one after another on the same scratch memory.  A loop of the grid may be split only if
the first block of each of its turns writes what it reads later: then nothing comes from the turn
before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwise.jax_compat.jaxprs import (
    Eqn,
    FlatJaxpr,
    Literal,
    Var,
    bodies,
    closed_jaxpr,
    scan_counts,
)
from meshwise.jax_compat.pallas import is_whole_block
from meshwise.rules.pallas.scalars import body_of, read, results_of

# Random numbers continue where the block before has stopped.
_STATEFUL = frozenset(("prng_seed", "prng_random_bits"))


def _equations(jaxpr: FlatJaxpr) -> Iterator[tuple[FlatJaxpr, Eqn]]:
    """Yield all equations, those of bodies too, each with the jaxpr that holds it."""
    for eqn in jaxpr.eqns:
        yield jaxpr, eqn
        for body in bodies(eqn.params):
            yield from _equations(body)


def draws_random_numbers(body: FlatJaxpr) -> bool:
    """Return whether a kernel uses the generator of its core.

    Args:
        body: The body of the kernel.
    """
    return any(eqn.primitive.name in _STATEFUL for _, eqn in _equations(body))


def period(body: FlatJaxpr, axis: int) -> int | None:
    """Return after how many turns of a loop the body does the same again.

    Args:
        body: The body of a kernel.
        axis: The loop, as the body counts them.

    Returns:
        1 if the body does not read its program_id; None if it does, and never does the same.
    """
    found = 1
    for jaxpr, eqn in _equations(body):
        if eqn.primitive.name != "program_id" or eqn.params["axis"] != axis:
            continue
        (place,) = eqn.outvars
        divisors = {_divisor(use, place) for use in jaxpr.eqns if place in use.invars}
        if place in jaxpr.outvars or None in divisors or len((divisors | {found}) - {1}) > 1:
            return None
        found = max(found, *(d for d in divisors if d is not None), 1)
    return found


def _divisor(use: Eqn, place: Var) -> int | None:
    """Return by what a place is divided if only the rest is used."""
    if use.primitive.name != "rem" or use.invars[0] is not place:
        return None
    divisor = use.invars[1]
    return int(divisor.val) if isinstance(divisor, Literal) else None


def written_first(
    body: FlatJaxpr, carried: Sequence[int], places: Mapping[int, int]
) -> frozenset[int] | None:
    """Return which references a kernel writes whole, of those that blocks leave to the next.

    Args:
        body: The body of the kernel.
        carried: Positions of the references that stay from block to block.
        places: Numbers of the block along loops of the grid, as the body counts them; only those
            that are known.

    Returns:
        Their positions; None if it reads one that it has not written.
    """
    refs = {body.invars[i]: i for i in carried}
    return _Walk(places).after(body, refs, {}, frozenset())


class _Walk:
    """Walks through a body once, in the order in which it runs."""

    def __init__(self, places: Mapping[int, int]) -> None:
        self.places = places

    def after(
        self,
        jaxpr: FlatJaxpr,
        refs: Mapping[Var, int],
        scalars: Mapping[Var, Any],
        written: frozenset[int],
    ) -> frozenset[int] | None:
        """Return what is written after a jaxpr; None if it reads what is not written.

        Args:
            jaxpr: The jaxpr.
            refs: Its references that stay from block to block.
            scalars: Its arguments that are known.
            written: References that are written before.
        """
        known = dict(scalars)
        used = {v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal)}
        used |= {v for v in jaxpr.outvars if not isinstance(v, Literal)}
        for eqn in jaxpr.eqns:
            values = [read(known, v) for v in eqn.invars]
            if eqn.primitive.name == "program_id":
                known[eqn.outvars[0]] = self.places.get(eqn.params["axis"])
                continue
            own = [refs.get(v) if not isinstance(v, Literal) else None for v in eqn.invars]
            if all(ref is None for ref in own):
                known.update(zip(eqn.outvars, results_of(eqn, values), strict=True))
                continue
            if eqn.primitive.name == "swap" and own[0] is not None and eqn.outvars[0] not in used:
                # What was there before is not looked at.
                if is_whole_block(eqn):
                    written |= {own[0]}
                continue
            found = self._after_equation(eqn, own, values, written)
            if found is None:
                return None
            written = found
        return written

    def _after_equation(
        self,
        eqn: Eqn,
        own: Sequence[int | None],
        values: Sequence[Any],
        written: frozenset[int],
    ) -> frozenset[int] | None:
        name, body = eqn.primitive.name, body_of(eqn)
        if name == "cond":
            branches = eqn.params["branches"]
            if values[0] is not None:
                branches = [branches[min(max(int(values[0]), 0), len(branches) - 1)]]
            ends = [self._after_body(x, own[1:], values[1:], written) for x in branches]
            known = [end for end in ends if end is not None]
            return frozenset.intersection(*known) if len(known) == len(ends) else None
        if name == "scan" and eqn.params["length"]:
            # In the first turn; the others find more written.
            count = scan_counts(eqn.params)[0]
            constants = [*values[:count], *(None for _ in values[count:])]
            return self._after_body(eqn.params["jaxpr"], own, constants, written)
        if body is not None:
            return self._after_body(body, own, values, written)
        needed = {ref for ref in own if ref is not None}
        return written if needed <= written else None

    def _after_body(
        self,
        body: Any,
        own: Sequence[int | None],
        values: Sequence[Any],
        written: frozenset[int],
    ) -> frozenset[int] | None:
        jaxpr: FlatJaxpr = closed_jaxpr(body).jaxpr
        refs = {v: ref for v, ref in zip(jaxpr.invars, own, strict=True) if ref is not None}
        return self.after(jaxpr, refs, dict(zip(jaxpr.invars, values, strict=True)), written)
