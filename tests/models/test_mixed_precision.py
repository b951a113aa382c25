"""The pieces of mixed precision by their definitions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from meshwise.models.mixed_precision import (
    adjust,
    all_finite,
    cast_floats,
    first_loss_scale,
    scale_loss,
    unscale,
    where_finite,
    with_master_copy,
)


def test_only_floats_are_cast() -> None:
    tree = {"w": jnp.ones(2), "i": jnp.arange(2), "b": np.array([True]), "k": jax.random.key(0)}
    cast = cast_floats(tree, jnp.bfloat16)
    assert cast["w"].dtype == jnp.bfloat16
    for name in ("i", "b", "k"):
        assert cast[name] is tree[name]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_number_that_is_not_finite_is_found(bad: float) -> None:
    tree = {"a": jnp.ones((2, 3)), "b": jnp.zeros(4)}
    assert all_finite(tree)
    assert not all_finite({**tree, "b": tree["b"].at[2].set(bad)})


def test_a_skipped_step_changes_nothing() -> None:
    new, old = {"w": jnp.array([jnp.nan, 1.0])}, {"w": jnp.array([2.0, 3.0])}
    np.testing.assert_array_equal(where_finite(jnp.array(False), new, old)["w"], old["w"])
    np.testing.assert_array_equal(where_finite(jnp.array(True), old, new)["w"], old["w"])


def test_gradients_that_vanish_in_float16_survive_the_scale() -> None:
    def gradient(value: float) -> jax.Array:
        scale = first_loss_scale(value)

        def loss(w: jax.Array) -> jax.Array:
            half = w.astype(jnp.float16)
            total = jnp.sum(half * jnp.float16(1e-3)).astype(jnp.float32)
            return scale_loss(total * 1e-5, scale)

        return unscale(jax.grad(loss)(jnp.ones(3)), scale)

    np.testing.assert_array_equal(gradient(1.0), 0.0)
    np.testing.assert_allclose(gradient(2.0**16), 1e-8, rtol=2e-3)


def test_the_scale_halves_at_once_and_doubles_after_some_good_steps() -> None:
    scale, seen = first_loss_scale(8.0), []
    for is_finite in (True, False, True, True, True, True, True, False, False, False, False, False):
        scale = adjust(scale, jnp.array(is_finite), growth_interval=2)
        seen.append(float(scale.value))
    assert seen == [8, 4, 4, 8, 8, 16, 16, 8, 4, 2, 1, 1]
    assert scale.value.dtype == jnp.float32
    assert scale.good_steps.dtype == jnp.int32


def test_narrow_parameters_are_the_rounded_master_copy() -> None:
    wide = {"w": jax.random.normal(jax.random.key(0), (64,))}
    tx = optax.adam(1e-3)
    narrow = cast_floats(wide, jnp.float16)
    expected, state = cast_floats(narrow, jnp.float32), tx.init(wide)
    half = with_master_copy(tx)
    params, kept = narrow, half.init(narrow)
    for k in range(3):
        grads = cast_floats(jax.tree.map(lambda x, k=k: x * (k + 1), wide), jnp.float16)
        updates, state = tx.update(cast_floats(grads, jnp.float32), state, expected)
        expected: Any = optax.apply_updates(expected, updates)
        updates, kept = half.update(grads, kept, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_array_equal(kept.master["w"], expected["w"])
    assert params["w"].dtype == jnp.float16
    np.testing.assert_array_equal(params["w"], expected["w"].astype(jnp.float16))
    # The steps are smaller than a float16 can tell near 1, and are not lost.
    assert np.any(np.asarray(params["w"]) != np.asarray(narrow["w"]))
