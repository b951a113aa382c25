"""Scalars of a kernel that are known before it runs: block numbers, and what follows from them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from meshwise.jax_compat.jaxprs import CALL_BODIES, Eqn, FlatJaxpr, Literal, Var, closed_jaxpr


def _quotient(x: int, y: int) -> int:
    """Return the quotient as JAX rounds it: towards zero."""
    return abs(x) // abs(y) * _sign(x) * _sign(y)


def _remainder(x: int, y: int) -> int:
    return x - _quotient(x, y) * y


def _sign(x: int) -> int:
    return (x > 0) - (x < 0)


def _selected(which: int, *cases: int) -> int:
    return cases[which]


# What block maps and bodies compute with whole numbers.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "div": _quotient,
        "rem": _remainder,
        "neg": operator.neg,
        "sign": _sign,
        "max": max,
        "min": min,
        "eq": operator.eq,
        "ne": operator.ne,
        "lt": operator.lt,
        "le": operator.le,
        "gt": operator.gt,
        "ge": operator.ge,
        "and": operator.and_,
        "or": operator.or_,
        "select_n": _selected,
        "convert_element_type": int,
    }
)


def read(known: Mapping[Var, Any], atom: Var) -> Any:
    """Return the value of a whole number or a truth; None if it is not known.

    Args:
        known: Values of variables.
        atom: A variable or a literal.
    """
    if isinstance(atom, Literal):
        is_whole = atom.aval.shape == () and atom.aval.dtype.kind in "biu"
        return int(atom.val) if is_whole else None
    return known.get(atom)


def body_of(eqn: Eqn) -> FlatJaxpr | None:
    """Return the body of a call; None for other equations, and where values are captured.

    Args:
        eqn: The equation.
    """
    name = CALL_BODIES.get(eqn.primitive.name)
    if name is None:
        return None
    closed = closed_jaxpr(eqn.params[name])
    return None if closed.consts else closed.jaxpr


def results_of(eqn: Eqn, values: Sequence[Any]) -> list[Any]:
    """Return the results of an equation; None for each that is not known.

    Args:
        eqn: The equation.
        values: Its operands; None for each that is not known.
    """
    body = body_of(eqn)
    if body is not None:
        return outputs_of(body, values)
    function = _FUNCTIONS.get(eqn.primitive.name)
    is_scalar = all(v.aval.shape == () and v.aval.dtype.kind in "biu" for v in eqn.outvars)
    if function is None or not is_scalar or any(value is None for value in values):
        return [None] * len(eqn.outvars)
    return [function(*values)]


def outputs_of(jaxpr: FlatJaxpr, values: Sequence[Any]) -> list[Any]:
    """Return the outputs of a jaxpr of scalars; None for each that is not known.

    Args:
        jaxpr: The jaxpr.
        values: Its arguments; None for each that is not known.
    """
    known = dict(zip(jaxpr.invars, values, strict=True))
    for eqn in jaxpr.eqns:
        found = results_of(eqn, [read(known, v) for v in eqn.invars])
        known.update(zip(eqn.outvars, found, strict=True))
    return [read(known, v) for v in jaxpr.outvars]
