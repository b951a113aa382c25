"""A step in which patterns of equations are replaced by one operator each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from jax import Array

from meshwise.jax_compat.jaxprs import (
    REMAT_NAMES,
    ClosedJaxpr,
    Eqn,
    FlatJaxpr,
    Literal,
    Var,
    bind_equation,
    closed_jaxpr,
    scan_counts,
    with_params,
)
from meshwise.jax_compat.source_lines import source_scope
from meshwise.trace.attention.written_out import primitive_names
from meshwise.trace.layers.equations import dependent, environment, inlined, read, traced
from meshwise.trace.loss import bind_loss
from meshwise.trace.step import OpenStep

_LOSS = "loss_and_grad"


class Match(Protocol):
    """Equations that are replaced by one operator."""

    @property
    def last(self) -> Eqn:
        """The equation whose result is replaced."""
        ...

    @property
    def inputs(self) -> list[Var]:
        """All variables that it takes."""
        ...

    def run(self, inputs: Sequence[Array], /) -> Array:
        """Return the result by the operator, from the values of `inputs`."""
        ...


# Takes a flat jaxpr, and those of its arguments for which something is differentiated.
Find: TypeAlias = Callable[[FlatJaxpr, Sequence[Var]], Sequence[Match]]


def replaced_step(opened: OpenStep, find: Find, needed: frozenset[str]) -> OpenStep | None:
    """Return a step in which each match is one operator.

    Matches are found before differentiation: in a loss of `mw.value_and_grad`, and in a step that
    differentiates nothing.

    Args:
        opened: The step as JAX traces it.
        find: Finds the matches of a jaxpr.
        needed: Names of primitives without which there are none.

    Returns:
        The step; None if nothing is found.
    """
    if not set(primitive_names(opened.closed.jaxpr)) >= needed:
        return None
    found = _replaced(opened.closed, [False] * len(opened.closed.in_avals), find)
    return None if found is None else replace(opened, closed=found)


def _replaced(
    closed: ClosedJaxpr, varied: Sequence[bool], find: Find, *, in_loss: bool = False
) -> ClosedJaxpr | None:
    """Return a jaxpr with operators in place of matches; None if there is none.

    Args:
        closed: The jaxpr.
        varied: For each argument, whether it depends on what a gradient is taken for.
        find: Finds matches.
        in_loss: Whether it is of a loss: one inside of it is differentiated twice, and stays.
    """
    flat = inlined(closed)
    jaxpr = flat.jaxpr
    roots = [v for v, is_varied in zip(jaxpr.invars, varied, strict=True) if is_varied]
    found = {id(match.last): match for match in find(jaxpr, roots)}
    follows = dependent(jaxpr.eqns, roots)
    inner: dict[int, Any] = {}
    for eqn in jaxpr.eqns:
        mask = [not isinstance(v, Literal) and v in follows for v in eqn.invars]
        body = _with_body(eqn, mask, find, in_loss=in_loss)
        if body is not None:
            inner[id(eqn)] = body
    if not found and not inner:
        return None

    def run(*operands: Array) -> list[Array]:
        known = environment(flat, operands)
        for eqn in jaxpr.eqns:
            if id(eqn) in found:
                made = [_run_match(found[id(eqn)], eqn, known)]
            else:
                values = [read(known, v) for v in eqn.invars]
                made = _run_equation(eqn, inner.get(id(eqn)), values)
            known.update(zip(eqn.outvars, made, strict=True))
        return [read(known, v) for v in jaxpr.outvars]

    return traced(run, flat.in_avals)


def _run_match(match: Match, eqn: Eqn, known: Any) -> Array:
    with source_scope(eqn.source_info):
        return match.run([read(known, v) for v in match.inputs])


def _run_equation(eqn: Eqn, body: Any, values: list[Array]) -> list[Array]:
    if body is None:
        return bind_equation(eqn, values)
    if eqn.primitive.name == _LOSS:
        return bind_loss(body, eqn.params["wrt"], values)
    params = eqn.params | {"jaxpr": body}
    return bind_equation(with_params(eqn, params), values)


def _with_body(eqn: Eqn, varied: Sequence[bool], find: Find, *, in_loss: bool) -> Any:
    """Return the body of an equation with operators in it; None if there is none."""
    name = eqn.primitive.name
    if name == _LOSS and not in_loss and eqn.params["loss"] is eqn.params["own"]:
        wrt = set(eqn.params["wrt"])
        mask = [i in wrt for i in range(len(eqn.invars))]
        return _replaced(eqn.params["loss"], mask, find, in_loss=True)
    if name == "scan":
        num_consts, num_carry = scan_counts(eqn.params)
        # A carry may follow from anything that the body takes.
        carried = range(num_consts, num_consts + num_carry)
        mask = [x or (i in carried and any(varied)) for i, x in enumerate(varied)]
        found = _replaced(eqn.params["jaxpr"], mask, find, in_loss=in_loss)
        return None if found is None or found.consts else found
    if name in REMAT_NAMES:
        found = _replaced(closed_jaxpr(eqn.params["jaxpr"]), varied, find, in_loss=in_loss)
        return None if found is None or found.consts else found.jaxpr
    return None
