"""A norm over all layers is joined of one number from each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.layered_steps import layering
from oracle.problem import quick_jit


def clipped(weights: list[Any], rows: Any) -> Any:
    """Gradient descent; what is added to the norm follows from no gradient."""

    def loss(weights: list[Any]) -> Any:
        x = rows
        for w, b in weights:
            x = jnp.tanh(x @ w + b)
        return jnp.mean((x - rows) ** 2)

    value, grads = mw.value_and_grad(loss)(weights)
    # In an order in which no two terms of one layer are neighbours.
    leaves = [g[k] for k in range(2) for g in grads]
    norm = jnp.sqrt(1e-6 + sum(jnp.sum(g**2) for g in leaves))
    new = [
        tuple(w - 0.1 * g / norm for w, g in zip(*p, strict=True))
        for p in zip(weights, grads, strict=True)
    ]
    return new, (value, norm)


@pytest.fixture(scope="module")
def args() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return [(draw(8, 8), draw(8)) for _ in range(3)], draw(4, 8)


def test_each_layer_sends_one_number(args: tuple[Any, Any]) -> None:
    layers = layering(clipped, args, 3)
    shares = [layers.update.share(k, k) for k in range(3)]
    sends = [[v.aval.shape for phase in share.sends for v in phase] for share in shares]
    assert sends == [[()] if share.owned else [] for share in shares]
    assert sum(map(len, sends)) > 1


def test_the_norm_is_the_same(args: tuple[Any, Any]) -> None:
    want = quick_jit(clipped)(*args)
    step = mw.parallelize(
        clipped, method=mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2, donate_argnums=()
    )
    got = step(*args)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
