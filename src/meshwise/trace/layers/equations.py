"""Equations of jaxprs: run one by one, calls taken apart, dependences followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import jax
from jax import Array
from jax.sharding import NamedSharding

from meshwise.jax_compat.jaxprs import (
    Aval,
    ClosedJaxpr,
    Eqn,
    Literal,
    Var,
    bind_equation,
    constrained,
    dead_code_eliminated,
)
from meshwise.jax_compat.source_lines import SourceInfo, best_source, source_scope
from meshwise.rules.identity import constraint_p

# Calls that mean no more than their body.  Custom derivatives and rematerialisation stay: what
# they say counts when the layer is differentiated.
_TRANSPARENT = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
}


_Value = TypeVar("_Value")


def environment(closed: ClosedJaxpr, operands: Sequence[_Value]) -> dict[Var, _Value]:
    """Return what is known before the first equation of a closed jaxpr.

    Args:
        closed: The jaxpr.
        operands: The values of its arguments.

    Returns:
        The values of its arguments and constants by variable.
    """
    known: dict[Var, _Value] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(closed.jaxpr.invars, operands, strict=True))
    return known


def run(equations: Iterable[Eqn], known: dict[Var, Array]) -> None:
    """Run equations in order, without what they ask of layouts: stages have meshes of their own.

    Args:
        equations: Equations of one jaxpr.
        known: Values by variable; the results are added.
    """
    for eqn in equations:
        values = [read(known, v) for v in eqn.invars]
        made = values if eqn.primitive.name == constraint_p.name else bind_equation(eqn, values)
        known.update(zip(eqn.outvars, made, strict=True))


def read(known: Mapping[Var, _Value], atom: Var) -> _Value:
    """Value of a variable or literal."""
    return atom.val if isinstance(atom, Literal) else known[atom]


def run_inlined(
    closed: ClosedJaxpr, operands: Sequence[Array], call: SourceInfo | None = None
) -> list[Array]:
    """Run a closed jaxpr with the calls in it taken apart.

    Args:
        closed: The jaxpr.
        operands: Its arguments.
        call: Source of the call whose body it is.
    """
    known = environment(closed, operands)
    for eqn in closed.jaxpr.eqns:
        inputs = [read(known, v) for v in eqn.invars]
        body = _TRANSPARENT.get(eqn.primitive.name)
        if body is None:
            made = bind_equation(eqn, inputs, call)
        else:
            source = best_source(eqn.source_info, call)
            inputs = _asked(inputs, eqn.params.get("in_shardings"), source)
            made = run_inlined(eqn.params[body], inputs, source)
            made = _asked(made, eqn.params.get("out_shardings"), source)
        known.update(zip(eqn.outvars, made, strict=True))
    return [read(known, v) for v in closed.jaxpr.outvars]


def _asked(
    values: list[Array], shardings: Sequence[object] | None, source: SourceInfo | None
) -> list[Array]:
    """Return values with the layouts that a `jax.jit` asks for as constraints."""
    if not shardings:
        return values
    with source_scope(source):
        return [
            constrained(x, asked) if isinstance(asked, NamedSharding) else x
            for x, asked in zip(values, shardings, strict=True)
        ]


def inlined(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Take the calls in a closed jaxpr apart and drop dead equations.

    Args:
        closed: The jaxpr.

    Returns:
        The same with the same arguments.
    """
    flat = jax.make_jaxpr(lambda *operands: run_inlined(closed, operands))(*closed.in_avals)
    return type(flat)(dead_code_eliminated(flat.jaxpr), flat.consts)


def traced(
    fun: Callable[..., Sequence[Array]], avals: Sequence[Aval | jax.ShapeDtypeStruct]
) -> ClosedJaxpr:
    """Trace a function of flat arguments, and drop dead equations.

    Args:
        fun: The function.
        avals: Shapes and dtypes of its arguments.

    Returns:
        Its closed jaxpr.
    """
    closed = jax.make_jaxpr(fun)(*avals)
    return type(closed)(dead_code_eliminated(closed.jaxpr), closed.consts)


def variables(atoms: Iterable[Var]) -> list[Var]:
    """Find the variables among atoms.

    Args:
        atoms: Variables and literals.

    Returns:
        Those that are no literals.
    """
    return [v for v in atoms if not isinstance(v, Literal)]


def dependent(equations: Iterable[Eqn], roots: Iterable[Var]) -> set[Var]:
    """Return the roots and all variables that follow from them."""
    found = set(roots)
    for eqn in equations:
        if any(v in found for v in variables(eqn.invars)):
            found.update(eqn.outvars)
    return found


def needed(equations: Sequence[Eqn], wanted: Iterable[Var]) -> list[Eqn]:
    """Return the equations, in order, that make the wanted variables."""
    want = set(wanted)
    kept: list[Eqn] = []
    for eqn in reversed(equations):
        if any(v in want for v in eqn.outvars):
            kept.append(eqn)
            want.update(variables(eqn.invars))
    return kept[::-1]
