"""Every call that JAX stages is inlined: its body is planned, nothing of it runs quietly whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshwise as mw
from doubles.foreign import mean, scale
from meshwise.trace.evaluate import run_program
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import equation_detail


@partial(lax.composite, name="test.twice")
def _composite(x: jax.Array) -> jax.Array:
    return x * 2.0


@jax.custom_batching.custom_vmap
def _custom_vmap(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


_custom_vmap.def_vmap(lambda size, batched, x: (jnp.sin(x), True))


def _linear_call(x: jax.Array) -> jax.Array:
    return jax.custom_derivatives.linear_call(lambda r, v: v * r, lambda r, t: t * r, 2.0, x)


@jax.custom_vjp
def _square(x: jax.Array) -> jax.Array:
    return x * x


_square.defvjp(lambda x: (x * x, x), lambda x, g: (2.0 * x * g,), optimize_remat=True)


@jax.custom_jvp
def _custom_jvp(x: jax.Array) -> jax.Array:
    return jnp.cos(x)


_custom_jvp.defjvp(lambda p, t: (jnp.cos(p[0]), t[0]))

_CALLS: dict[str, Callable[[Any], Any]] = {
    "composite": _composite,
    "custom_jvp": _custom_jvp,
    "custom_vmap": _custom_vmap,
    "custom_vjp": _square,
    "jit": jax.jit(jnp.tanh),
    "linear_call": _linear_call,
    "remat": jax.checkpoint(jnp.exp),
    "remat, optimized": jax.grad(lambda x: jax.checkpoint(_square)(x).sum()),
    "remat_opt": jax.grad(lambda x: _square(x).sum()),
}
# What the flat programs above may consist of.
_PLAIN = {
    *("mul", "sin", "cos", "tanh", "exp", "broadcast_in_dim", "optimization_barrier"),
    *("convert_element_type", "reduce_sum"),
}


@pytest.mark.parametrize("name", _CALLS)
def test_a_call_is_inlined(name: str) -> None:
    x = np.arange(4, dtype=np.float32)
    fun = _CALLS[name]
    program = flatten(jax.make_jaxpr(fun)(x))
    assert {node.name for node in program.nodes} <= _PLAIN
    (got,) = run_program(program, [x])
    np.testing.assert_array_equal(got, fun(x))


def test_a_primitive_of_a_library_is_what_it_is_made_of() -> None:
    """As those of Equinox; what leaves JAX, and what the user gives a rule for, stays whole."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = jax.make_jaxpr(lambda x: mean(scale(x), 1))(x)
    program = flatten(made)
    names = [node.name for node in program.nodes]
    assert names == ["someone_elses_scale", "reduce_sum", "div"]
    np.testing.assert_allclose(run_program(program, [x])[0], 2 * x.mean(1), rtol=1e-6)
    ruled = flatten(made, {"someone_elses_mean": mw.KernelLoops(loops="bd->b", whole="d")})
    assert [node.name for node in ruled.nodes] == ["someone_elses_scale", "sharded_kernel"]


def test_the_text_of_an_equation_holds_no_address() -> None:
    """Equal steps have equal plans: a function among the parameters has no name in the plan."""

    def details() -> list[str]:
        fun = lambda x: lax.reduce(x, np.float32(1), lambda a, b: a * b + 0.0, (0,))  # noqa: E731
        nodes = flatten(jax.make_jaxpr(fun)(np.ones((4, 2), np.float32))).nodes
        return [equation_detail(node.equation) for node in nodes]

    assert details() == details()
    assert not any(" at 0x" in text for text in details())


def test_the_branch_for_a_platform_is_chosen_where_the_program_runs() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.cos)

    names = [node.name for node in flatten(jax.make_jaxpr(fun)(jnp.ones(4))).nodes]
    assert names == ["platform_index", "cond"]
