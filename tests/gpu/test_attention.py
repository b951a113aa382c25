"""Kernels of attention on a GPU: numbers under a plan, and the loops that their rules state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.attention_step import attention_step, by_cudnn, by_jax, by_triton, shapes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU"),
]


def arguments() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    weights, batch = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(s.dtype), shapes())
    return jax.tree.map(lambda w: w / np.sqrt(len(w)), weights), batch


def moved(attention: Callable[..., Any], num_microbatches: int | None) -> tuple[Any, float]:
    """By how much a step moves each weight, and its loss; `jax.jit` without a number."""
    weights, batch = arguments()
    step: Any = jax.jit(attention_step(attention))
    if num_microbatches is not None:
        step = mw.parallelize(
            attention_step(attention),
            num_microbatches=num_microbatches,
            batch_argnums=(1,),
            donate_argnums=(),
        )
    found, loss = step(weights, batch)
    return jax.tree.map(lambda new, old: np.asarray(new) - old, found, weights), float(loss)


# JAX 0.11 says that it will give up Triton.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")
@pytest.mark.parametrize("num_microbatches", [1, 4])
@pytest.mark.parametrize("attention", [by_cudnn, by_triton])
def test_a_step_with_a_kernel_has_the_numbers_of_jit(
    attention: Callable[..., Any], num_microbatches: int
) -> None:
    found, loss = moved(attention, num_microbatches)
    for other in (attention, by_jax):
        wanted, wanted_loss = moved(other, None)
        assert loss == pytest.approx(wanted_loss, rel=1e-3)
        for name, move in wanted.items():
            assert np.linalg.norm(found[name] - move) <= 2e-2 * np.linalg.norm(move), name


def test_parts_of_attention_by_cudnn_are_the_whole() -> None:
    """Rows of the batch and heads of keys are split as `rules/cudnn` says."""
    rng = np.random.default_rng(1)
    q, k, v = (
        jnp.asarray(rng.normal(size=(4, 256, heads, 64)), jnp.bfloat16) for heads in (8, 2, 2)
    )
    across = jnp.asarray(rng.normal(size=q.shape), jnp.bfloat16)

    @jax.jit
    def results(q: Any, k: Any, v: Any, across: Any) -> Any:
        out, back = jax.vjp(by_cudnn, q, k, v)
        return (out, *back(across))

    whole = results(q, k, v, across)
    for rows in (slice(0, 2), slice(2, 4)):
        for head in range(2):
            keys, queries = slice(head, head + 1), slice(4 * head, 4 * head + 4)
            part = results(
                q[rows, :, queries], k[rows, :, keys], v[rows, :, keys], across[rows, :, queries]
            )
            for found, wanted, heads in zip(
                part, whole, (queries, queries, keys, keys), strict=True
            ):
                np.testing.assert_allclose(
                    np.asarray(found, np.float32),
                    np.asarray(wanted[rows, :, heads], np.float32),
                    rtol=2e-2,
                    atol=2e-2,
                )
