"""Choices between equal values go, with what decides them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from meshwise.trace.choices import without_idle_choices
from meshwise.trace.flatten import flatten
from meshwise.trace.program import Program
from oracle.every_strategy import evaluate
from oracle.one_device import descent, run_traced, traced

P = np.array([True, False, True])
X = np.array([1.0, -2.0, 3.0], np.float32)


def program_of(fun: Callable[..., Any], *args: Any) -> Program:
    return flatten(jax.make_jaxpr(fun)(*args))


def names(program: Program) -> list[str]:
    inside = [name for node in program.nodes for body in node.bodies for name in names(body)]
    return [node.name for node in program.nodes] + inside


IDLE = {
    "zeros": lambda p, x: x + lax.select(jnp.sin(x) > 0, jnp.zeros(3), jnp.zeros_like(x)),
    "one value": lambda p, x: lax.select(jnp.sin(x) > 0, x, x),
    "of several": lambda p, x: x + lax.select_n(jnp.int32(x > 0), *[jnp.ones(3)] * 3),
    "by another way": lambda p, x: x + jnp.where(p, jnp.ones(3), jnp.ones((3, 1))[:, 0]),
    "converted": lambda p, x: x + lax.select(p, jnp.ones(3), jnp.full(3, 1, int).astype(x.dtype)),
    "not a number": lambda p, x: x + lax.select(p, *[jnp.full(3, jnp.nan, x.dtype)] * 2),
    "of a choice": lambda p, x: x + lax.select(
        p, lax.select(x > 0, jnp.ones(3), jnp.ones(3)), jnp.ones(3)
    ),
    "of a moved choice": lambda p, x: x + lax.select(
        p, lax.select(p[:, None], *[jnp.ones((3, 1))] * 2)[:, 0], jnp.ones(3)
    ),
    "result": lambda p, x: lax.select(p, jnp.ones(3), jnp.ones(3)),
}  # fmt: skip
REAL = {
    "of two zeros": lambda p, x: lax.select(p, jnp.full(3, 0.0), jnp.full(3, -0.0)),
    "of constants": lambda p, x: x + lax.select(p, jnp.ones(3), jnp.zeros(3)),
    "of arguments": lambda p, x: lax.select(p, x, -x),
    "with an argument": lambda p, x: lax.select(p, x, jnp.zeros(3)),
    "of positions": lambda p, x: lax.select(p, jnp.arange(3.0), jnp.arange(3.0)[::-1]),
}


@pytest.mark.parametrize("name", IDLE)
def test_choice_between_equal_values_goes(name: str) -> None:
    program = program_of(IDLE[name], P, X)
    assert "select_n" in names(program), "the test needs a choice"
    found = without_idle_choices(program)
    assert not {"select_n", "sin", "gt"} & set(names(found))
    (value,) = (evaluate(found, (P, X))[i] for i in found.outputs)
    np.testing.assert_array_equal(value, IDLE[name](P, X))


@pytest.mark.parametrize("name", REAL)
def test_choice_between_others_stays(name: str) -> None:
    program = program_of(REAL[name], P, X)
    assert without_idle_choices(program) is program
    assert "select_n" in names(program)


def test_gradient_of_a_lookup_in_micro_batches_is_scattered_into_a_generated_value() -> None:
    params = {"table": np.arange(12.0, dtype=np.float32).reshape(6, 2)}
    batch = np.array([1, 5, 0, 1], np.int32)
    update = descent(lambda params, batch: jnp.sum(params["table"][batch] ** 2))
    step = traced(update, params, batch, b=2)
    (loop,) = [operator for operator in step.graph.operators if operator.bodies]
    (body,) = loop.bodies
    (scatter,) = [operator for operator in body.operators if operator.kind == "scatter-add"]
    assert body.tensors[scatter.inputs[0]].generated
    np.testing.assert_allclose(
        run_traced(step, params, batch)[0]["table"], update(params, batch)[0]["table"], rtol=1e-6
    )


def test_in_micro_batches_what_is_added_to_counts_once() -> None:
    params = {"table": np.arange(12.0, dtype=np.float32).reshape(6, 2)}
    batch = np.array([1, 5, 0, 1], np.int32)

    def loss(params: Any, batch: Any) -> Any:
        return jnp.sum(params["table"].at[batch].add(2.0)), jnp.ones(6).at[batch].add(1.0)

    step = traced(descent(loss), params, batch, b=2)
    (loop,) = [node for node in step.program.nodes if node.bodies]
    assert "select_n" in names(loop.bodies[0]), "ones in the first micro-batch, zeros in others"
    found, wanted = run_traced(step, params, batch), descent(loss)(params, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)
