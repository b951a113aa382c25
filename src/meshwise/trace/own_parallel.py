"""Parallel code of a user's own becomes operations on whole arrays: a plan decides what is split.

An inner `shard_map`, or `pmap`, which is one, becomes `vmap`s over the axes of its mesh
(`trace.mapped`).  Meshes in types, as under `jax.set_mesh` with Explicit axes, are forgotten, so a
step has the same program under each; what `reshard` asks for is a constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from meshwise.errors import TraceError
from meshwise.jax_compat.contexts import NO_MESH, has_bound_axes, has_mesh, names_axes, without_mesh
from meshwise.jax_compat.jaxprs import (
    CALL_BODIES,
    REMAT_NAMES,
    Aval,
    ClosedJaxpr,
    Eqn,
    FlatJaxpr,
    Jaxpr,
    bind_equation,
    bodies,
    closed_jaxpr,
    constrained,
    consts_as_inputs,
    is_tracer,
    with_params,
)
from meshwise.jax_compat.source_lines import SourceInfo, best_source, source_line, source_scope
from meshwise.trace.layers.equations import environment, read
from meshwise.trace.mapped import mapped
from meshwise.trace.own_collectives import lacks_vmap, with_vmap

# What only says over which axes a value may differ.
_CASTS = frozenset({"pvary"})
_PARALLEL = frozenset({"shard_map", "reshard", *_CASTS})
# Not a kernel, whose body has references; a loss is on whole arrays already.
_WITH_BODIES = frozenset({"scan", "cond", "while", *CALL_BODIES})
_CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call"})
_SHARDINGS = {"sharding", "out_sharding"}


def on_whole_arrays(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a jaxpr without meshes and without `shard_map`.

    Args:
        closed: The jaxpr.

    Returns:
        One on whole arrays that means the same; the same object where there is nothing to do.

    Raises:
        TraceError: a `shard_map` does what has no meaning on whole arrays.
    """
    if not _is_parallel(closed.jaxpr):
        return closed
    specs = map(_bare, closed.in_avals)
    return jax.make_jaxpr(lambda *operands: _run(closed, operands, None))(*specs)


def _is_parallel(jaxpr: FlatJaxpr) -> bool:
    is_inner = has_bound_axes()
    return any(has_mesh(var.aval) for var in jaxpr.invars) or any(
        eqn.primitive.name in _PARALLEL
        or (is_inner and lacks_vmap(eqn))
        or any(has_mesh(var.aval) for var in eqn.outvars)
        or _has_context(eqn)
        or (eqn.primitive.name in _WITH_BODIES and any(map(_is_parallel, bodies(eqn.params))))
        for eqn in jaxpr.eqns
    )


def _has_context(eqn: Eqn) -> bool:
    """Return whether an equation says under which mesh it was traced."""
    mesh = eqn.params.get("ctx_mesh")
    return mesh is not None and not mesh.empty


def _asks(eqn: Eqn) -> bool:
    """Return whether a `reshard` asks for a layout; JAX's own only name the mesh."""
    return any(eqn.params["dst_sharding"].spec) or any(eqn.invars[0].aval.sharding.spec)


def _bare(aval: Aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _bare_value(value: Any) -> Any:
    """Return a value known at trace time without the mesh under which it was made."""
    is_traced = is_tracer(value)
    return value if is_traced or not has_mesh(jax.typeof(value)) else np.asarray(value)


def _run(closed: ClosedJaxpr, operands: Sequence[Array], call: SourceInfo | None) -> list[Array]:
    known = environment(closed, operands)
    known.update((var, _bare_value(known[var])) for var in closed.jaxpr.constvars)
    for eqn in closed.jaxpr.eqns:
        values = [_bare_value(read(known, v)) for v in eqn.invars]
        made = _run_equation(eqn, values, best_source(eqn.source_info, call))
        known.update(zip(eqn.outvars, made, strict=True))
    return [_bare_value(read(known, v)) for v in closed.jaxpr.outvars]


def _run_equation(eqn: Eqn, values: list[Array], source: SourceInfo | None) -> list[Array]:
    name, params = eqn.primitive.name, eqn.params
    if name in _CUSTOM and any(names_axes(var.aval.sharding) for var in eqn.outvars):
        return _with_lost_derivative(closed_jaxpr(params[CALL_BODIES[name]]), values, source)
    if name == "shard_map":
        return _run_mapped(params, values, source)
    if name == "pallas_call" and any(has_mesh(var.aval) for var in eqn.outvars):
        raise TraceError(
            f"the Pallas kernel at {source_line(source)} stands in a shard_map, and is made for "
            "the part of one device; call it on whole arrays, without shard_map: a plan splits "
            "its blocks, or the loops that mw.sharded_kernel states"
        )
    if name in _CASTS or (name == "reshard" and not _asks(eqn)):
        return values
    with source_scope(source):
        if has_bound_axes() and lacks_vmap(eqn):
            return with_vmap(eqn, values)
        if name == "psum_invariant":
            return [lax.psum(value, params["axes"]) for value in values]
        if name == "reshard":
            return [constrained(values[0], params["dst_sharding"])]
    own = {key: _without_meshes(value) for key, value in params.items()}
    if name in _WITH_BODIES:
        own = {key: _whole_body(value) for key, value in own.items()}
    if name in REMAT_NAMES:
        values = _with_operands_for_constants(own, values)
    if name != "sharding_constraint":
        own |= dict.fromkeys(own.keys() & _SHARDINGS)
    if "ctx_mesh" in own:
        own["ctx_mesh"] = NO_MESH
    return bind_equation(with_params(eqn, own), values, source)


def _with_operands_for_constants(own: dict[str, Any], values: list[Array]) -> list[Array]:
    """Let a checkpoint, whose body has no constants, take them as operands.

    They are the numbers of devices in a permutation, as of `ppermute`.
    """
    body = closed_jaxpr(own["jaxpr"])
    if not body.consts:
        return values
    own["jaxpr"] = consts_as_inputs(body).jaxpr
    if isinstance(own["prevent_cse"], tuple):
        own["prevent_cse"] = (*(False for _ in body.consts), *own["prevent_cse"])
    return [*body.consts, *values]


def _with_lost_derivative(
    body: ClosedJaxpr, values: list[Array], source: SourceInfo | None
) -> list[Array]:
    """Run a function whose own derivative was traced for types that are gone."""

    @jax.custom_jvp
    def run(*operands: Array) -> list[Array]:
        return _run(body, operands, source)

    @run.defjvp
    def refuse(*_: Any) -> Any:
        raise TraceError(
            f"the function at {source_line(source)} has a derivative of its own (jax.custom_jvp or "
            "jax.custom_vjp) and is called in a shard_map or on arrays with Explicit axes, where a "
            "step that is cut into stages loses it; call it without these, or use one stage"
        )

    return run(*values)


def _without_meshes(value: Any) -> Any:
    """Return a parameter of an equation, the types of results in it without their mesh."""
    if type(value) is not tuple or not any(map(has_mesh, value)):
        return value
    return tuple(without_mesh(x) if has_mesh(x) else x for x in value)


def _whole_body(value: Any) -> Any:
    """Return a parameter of an equation, a jaxpr in it on whole arrays."""
    if isinstance(value, tuple) and value and isinstance(value[0], ClosedJaxpr):
        return tuple(map(on_whole_arrays, value)) if type(value) is tuple else value
    if isinstance(value, ClosedJaxpr):
        return on_whole_arrays(value)
    if not isinstance(value, Jaxpr):
        return value
    closed = on_whole_arrays(closed_jaxpr(value))
    return closed if closed.consts else closed.jaxpr


def _run_mapped(
    params: dict[str, Any], values: list[Array], source: SourceInfo | None
) -> list[Array]:
    body = closed_jaxpr(params["jaxpr"])
    try:
        with source_scope(source):
            return mapped(params, values, lambda *blocks: _run(body, blocks, source))
    except (AssertionError, NotImplementedError, ValueError) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise TraceError(
            f"shard_map at {source_line(source)} cannot be taken as operations on whole arrays, "
            f"from which a plan is made: {said}; write what it does without shard_map"
        ) from error
