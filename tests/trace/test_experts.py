"""Experts in a traced step: what is found, what is left as it is, and that it means the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshwise as mw
from meshwise.trace.experts.replace import with_experts
from meshwise.trace.layers.equations import run_inlined
from meshwise.trace.program import Program
from meshwise.trace.step import StepSignature, open_step, trace_step

ROWS, WIDTH, INNER, GROUPS = 12, 4, 6, 3
_BY_VECTOR = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (1,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[0],
)
SIGNATURE = StepSignature(batch_argnums=(), batch_dims=0, donate_argnums=())

Experts = Callable[[Any, Any, Any], Any]


def _operands(dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    shapes = {"gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH)}
    weights = {
        name: jnp.asarray(rng.normal(size=(GROUPS, *shape)), dtype)
        for name, shape in shapes.items()
    }
    rows = jnp.asarray(rng.normal(size=(ROWS, WIDTH)), dtype)
    return rows, weights, jnp.array([4, 0, 6], jnp.int32)


def _gated(activation: Any) -> Experts:
    def experts(rows: Any, weights: Any, sizes: Any) -> Any:
        gate, up = (lax.ragged_dot(rows, weights[name], sizes) for name in ("gate", "up"))
        return lax.ragged_dot(activation(gate) * up, weights["down"], sizes)

    return experts


def _plain(rows: Any, weights: Any, sizes: Any) -> Any:
    inner = lax.ragged_dot(rows, weights["up"], sizes)
    return lax.ragged_dot(jnp.maximum(inner, 0), weights["down"], sizes)


def _cast(rows: Any, weights: Any, sizes: Any) -> Any:
    inner = lax.ragged_dot(rows, weights["up"].astype(jnp.bfloat16).astype(jnp.float32), sizes)
    return lax.ragged_dot(2.0 * inner.astype(jnp.bfloat16), weights["down"], sizes)


def _clipped(x: Any) -> Any:
    return jnp.where(x > 0, jnp.clip(x, -1.0, 1.0), 0.1 * x)


def _both_ends(rows: Any, weights: Any, sizes: Any) -> Any:
    """The value between the products is a result, too."""
    inner = jnp.tanh(lax.ragged_dot(rows, weights["up"], sizes))
    return lax.ragged_dot(inner, weights["down"], sizes).sum() + inner.sum()


def _other_groups(rows: Any, weights: Any, sizes: Any) -> Any:
    inner = lax.ragged_dot(rows, weights["up"], sizes)
    return lax.ragged_dot(inner, weights["down"], sizes[::-1])


def _other_rows(rows: Any, weights: Any, sizes: Any) -> Any:
    gate = lax.ragged_dot(rows, weights["gate"], sizes)
    up = lax.ragged_dot(rows[::-1], weights["up"], sizes)
    return lax.ragged_dot(gate * up, weights["down"], sizes)


def _shared(rows: Any, weights: Any, sizes: Any) -> Any:
    inner = lax.ragged_dot(rows, weights["up"], sizes) + lax.ragged_dot(rows, weights["up"], sizes)
    return lax.ragged_dot(inner, weights["down"], sizes)


def _mixed(rows: Any, weights: Any, sizes: Any) -> Any:
    """Between the products stands what is not of each row alone."""
    inner = lax.ragged_dot(rows, weights["up"], sizes)
    return lax.ragged_dot(inner - inner.mean(axis=0), weights["down"], sizes)


def _one(rows: Any, weights: Any, sizes: Any) -> Any:
    return jnp.tanh(lax.ragged_dot(rows, weights["up"], sizes))


def _stacked(rows: Any, weights: Any, sizes: Any) -> Any:
    """Two layers with the same groups, and a residual stream."""
    for _ in range(2):
        rows = rows + _plain(rows, weights, sizes)
    return rows


def _scanned(rows: Any, weights: Any, sizes: Any) -> Any:
    rows, _ = lax.scan(lambda x, _: (x + _plain(x, weights, sizes), None), rows, None, length=2)
    return rows


def _again(rows: Any, weights: Any, sizes: Any) -> Any:
    return jax.checkpoint(_plain)(rows, weights, sizes)


def _columns(rows: Any, weights: Any, sizes: Any) -> Any:
    """One number for each row."""
    inner = jnp.tanh(lax.ragged_dot(rows, weights["up"], sizes))
    return lax.ragged_dot_general(inner, weights["down"][:, :, 0], sizes, _BY_VECTOR)


FOUND: dict[str, tuple[Experts, int]] = {
    "silu": (_gated(jax.nn.silu), 1),
    "gelu": (_gated(jax.nn.gelu), 1),
    # It has a derivative of its own.
    "relu": (_gated(jax.nn.relu), 0),
    "clipped": (_gated(_clipped), 1),
    # Infinite where there is no row.
    "log": (_gated(lambda x: jnp.log(jnp.abs(x))), 1),
    "one product first": (_plain, 1),
    "two layers": (_stacked, 2),
    "in a loop": (_scanned, 1),
    "in checkpoint": (_again, 1),
    "short floats between": (_cast, 1),
    "one product": (_one, 0),
    "used elsewhere": (_both_ends, 0),
    "other groups": (_other_groups, 0),
    "other rows": (_other_rows, 0),
    "one matrix twice": (_shared, 0),
    "rows mixed": (_mixed, 0),
    "matrices of one column": (_columns, 0),
}


def _step(experts: Experts) -> Any:
    def step(weights: Any, rows: Any, sizes: Any) -> Any:
        def loss(weights: Any, rows: Any) -> Any:
            return jnp.sum(jnp.sin(experts(rows, weights, sizes).astype(jnp.float32)))

        return mw.value_and_grad(loss, argnums=(0, 1))(weights, rows)

    return step


def _count(program: Program, name: str) -> int:
    inner = sum(_count(body, name) for node in program.nodes for body in node.bodies)
    return inner + sum(node.name == name for node in program.nodes)


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_means_the_same(name: str) -> None:
    experts, count = FOUND[name]
    rows, weights, sizes = _operands()
    args = (weights, rows, sizes)
    opened = open_step(_step(experts), args, {}, SIGNATURE)
    found = with_experts(opened)
    assert found.joins_experts == (count > 0)
    program = trace_step(found).program
    assert _count(program, "experts_gradient") == count
    leaves = jax.tree.leaves(args)
    got = jax.jit(lambda *x: run_inlined(found.closed, x))(*leaves)
    want = jax.jit(lambda *x: run_inlined(opened.closed, x))(*leaves)
    for value, expected in zip(got, want, strict=True):
        assert np.all(np.isfinite(expected))
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_a_step_without_gradients_has_them_too() -> None:
    rows, weights, sizes = _operands()
    opened = open_step(_plain, (rows, weights, sizes), {}, SIGNATURE)
    program = trace_step(with_experts(opened)).program
    assert [node.name for node in program.nodes if "experts" in node.name] == ["experts"]
    assert _count(program, "ragged_dot_general") == 0


def test_experts_of_which_only_some_gradients_are_wanted_stay_products() -> None:
    """The operator makes all gradients."""
    rows, weights, sizes = _operands()

    def step(weights: Any, scale: Any) -> Any:
        def loss(scale: Any) -> Any:
            return _plain(rows * scale, weights, sizes).sum()

        return mw.value_and_grad(loss)(scale)

    opened = open_step(step, (weights, jnp.float32(2.0)), {}, SIGNATURE)
    assert not with_experts(opened).joins_experts
