"""Jaxprs: their types, their bodies, and equations that are bound again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import jax
from jax import Array, core, lax, sharding
from jax._src import pjit
from jax._src.interpreters.partial_eval import convert_constvars_jaxpr
from jax._src.mesh import empty_abstract_mesh
from jax.extend import core as jex_core
from jax.interpreters import partial_eval

from meshwise.jax_compat.source_lines import SourceInfo, best_source, source_scope

# A tree of arrays as JAX understands it: dicts, lists, tuples and registered classes, nested.
PyTree: TypeAlias = Any


Literal = jex_core.Literal


Jaxpr = jex_core.Jaxpr


ClosedJaxpr = jex_core.ClosedJaxpr


Primitive = jex_core.Primitive


jaxpr_as_fun = jex_core.jaxpr_as_fun


# The shape and dtype of a value, as JAX traces it.
Aval: TypeAlias = core.ShapedArray


class Var(Protocol):
    """A variable of a jaxpr, or a literal in its place.

    Attributes:
        aval: The shape and dtype of its value.
    """

    aval: Aval


class Eqn(Protocol):
    """An equation of a jaxpr.

    Attributes:
        primitive: The operation.
        params: The parameters of the operation.
        invars: The operands.
        outvars: The results.
        source_info: The user's line.
        effects: What it does beside returning results.
    """

    primitive: Primitive
    params: dict[str, Any]
    invars: list[Var]
    outvars: list[Var]
    source_info: SourceInfo
    effects: frozenset[Any]


class FlatJaxpr(Protocol):
    """A jaxpr, closed or not.

    Attributes:
        constvars: Variables of captured values.
        invars: The arguments.
        eqns: The equations, in order.
        outvars: The results.
    """

    constvars: list[Var]
    invars: list[Var]
    eqns: list[Eqn]
    outvars: list[Var]


# Primitives whose body is inlined; the parameter that holds it.  `pjit` is the name before 0.7,
# `remat2` of 0.10, `remat3` of 0.11.
CALL_BODIES = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "remat3": "jaxpr",
    "checkpoint": "jaxpr",
    "composite": "jaxpr" if jax.__version_info__ < (0, 11) else "call_jaxpr",
    "custom_vmap_call": "call",
    "linear_call": "callee",
    "eval_jaxpr": "call_jaxpr",
    "xla_metadata_call": "jaxpr",
    "remat_opt": "fwd_jaxpr",
}


REMAT_NAMES = frozenset({"remat2", "remat3", "checkpoint"})


def dead_code_eliminated(jaxpr: Jaxpr) -> Jaxpr:
    """Drop the equations that no result needs; inputs stay.

    Args:
        jaxpr: The jaxpr.

    Returns:
        The same without dead equations.
    """
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def consts_as_inputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Make captured values leading arguments.

    Args:
        closed: The jaxpr.

    Returns:
        A closed jaxpr that captures nothing.
    """
    if not closed.consts:
        return closed
    return ClosedJaxpr(convert_constvars_jaxpr(closed.jaxpr), ())


def bind_equation(eqn: Eqn, operands: Sequence[Any], call: SourceInfo | None = None) -> list[Any]:
    """Run one equation of a jaxpr, under its own source line or that of the call that holds it.

    Args:
        eqn: The equation.
        operands: The values of its operands.
        call: The source of the call.

    Returns:
        Its results.
    """
    with source_scope(best_source(eqn.source_info, call)):
        out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def with_params(eqn: Any, params: dict[str, Any]) -> Eqn:
    """Return an equation with other parameters.

    Args:
        eqn: The equation.
        params: The parameters.
    """
    return eqn.replace(params=params)


def constrained(value: Array, wanted: sharding.NamedSharding) -> Array:
    """Say how a value is to be split; the mesh may have no devices, and axes of any type.

    Args:
        value: The value.
        wanted: What is asked.

    Returns:
        The same value.
    """
    return pjit.sharding_constraint_p.bind(
        value,
        sharding=wanted,
        layout=None,
        context_mesh=empty_abstract_mesh,
        unconstrained_dims=frozenset(),
    )


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Count the constants and the carries of a `scan` equation.

    JAX 0.11 holds the structure of the operands (`ft_in`) in place of the two numbers.

    Args:
        params: The parameters of the equation.

    Returns:
        The two numbers.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    positions = range(len(params["jaxpr"].in_avals))
    consts, carry, _ = params["ft_in"].update(positions).unpack()
    return len(list(consts)), len(list(carry))


def closed_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """Close a jaxpr that may be open: JAX 0.11 has open ones in the parameters of `scan`.

    Args:
        jaxpr: The jaxpr.

    Returns:
        The closed one.
    """
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def bodies(params: Mapping[str, Any]) -> list[FlatJaxpr]:
    """Find the jaxprs among the parameters of an equation.

    Args:
        params: The parameters.

    Returns:
        The jaxprs.
    """
    return cast(list[FlatJaxpr], list(jex_core.jaxprs_in_params(dict(params))))


def closed_bodies(params: Mapping[str, Any]) -> list[ClosedJaxpr]:
    """Find the jaxprs among the parameters of an equation that capture nothing.

    Args:
        params: The parameters.

    Returns:
        The jaxprs, closed.
    """
    return [closed_jaxpr(cast(Jaxpr, body)) for body in bodies(params) if not body.constvars]


def while_parts(params: Mapping[str, Any]) -> tuple[Jaxpr, Jaxpr, int, int]:
    """Return the parts of a `while` equation.

    Args:
        params: The parameters of the equation.

    Returns:
        Predicate, body, and the numbers of constants of each.
    """
    return (
        params["cond_jaxpr"],
        params["body_jaxpr"],
        params["cond_nconsts"],
        params["body_nconsts"],
    )


def weakly_typed(value: Array) -> Array:
    """Let a value give way to the dtype of what it meets, as a number of Python does.

    Args:
        value: The value.

    Returns:
        The same value, weakly typed.
    """
    return lax.convert_element_type_p.bind(
        value, new_dtype=value.dtype, weak_type=True, sharding=None
    )


def is_tracer(value: object) -> bool:
    """Tell whether a value is being traced.

    Args:
        value: The value.

    Returns:
        Whether it is.
    """
    return isinstance(value, core.Tracer)
