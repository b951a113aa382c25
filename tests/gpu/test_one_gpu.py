"""On a machine with a GPU: the same numbers as plain `jax.jit`, with and without micro-batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwise as mw
from meshwise.models.gpt import Gpt, GptConfig
from meshwise.models.losses import mean_cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU"),
]

BATCH = 16


def gpt_step(config: GptConfig) -> tuple[Any, Any, dict[str, jax.Array]]:
    model, tx = Gpt(config), optax.adam(1e-3, eps=1e-3)

    def create(key: jax.Array) -> Any:
        params = model.init(key, jnp.zeros((1, config.seq_len), jnp.int32))
        return params, tx.init(params), jax.random.key(1)

    def step(state: Any, batch: dict[str, jax.Array]) -> Any:
        params, opt_state, key = state
        key, dropout = jax.random.split(key)

        def loss_fn(params: Any) -> jax.Array:
            logits = model.apply(params, batch["x"], deterministic=False, rngs={"dropout": dropout})
            return mean_cross_entropy(logits, batch["y"])

        loss, grads = mw.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, key), loss

    tokens = jax.random.randint(jax.random.key(2), (BATCH, config.seq_len), 0, config.vocab_size)
    return create, step, {"x": tokens, "y": jnp.roll(tokens, -1, axis=1)}


@pytest.mark.parametrize("num_microbatches", [1, 4])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_same_numbers_as_jit(num_microbatches: int, scan_layers: bool) -> None:
    config = GptConfig(
        vocab_size=256,
        seq_len=64,
        hidden=128,
        num_layers=2,
        num_heads=4,
        dropout=0.1,
        scan_layers=scan_layers,
    )
    create, step, batch = gpt_step(config)
    with jax.default_matmul_precision("highest"):
        state = create(jax.random.key(0))
        wanted, wanted_loss = jax.jit(step)(state, batch)
        parallel = mw.parallelize(step, num_microbatches=num_microbatches, donate_argnums=())
        found, found_loss = parallel(state, batch)
    np.testing.assert_allclose(found_loss, wanted_loss, rtol=1e-5)
    leaves = zip(
        jax.tree.leaves(found[0]),
        jax.tree.leaves(wanted[0]),
        jax.tree.leaves(state[0]),
        strict=True,
    )
    norms = [[float(jnp.linalg.norm(x)) for x in (a - b, b - c, b)] for a, b, c in leaves]
    moved_most = max(moved for _, moved, _ in norms)
    for error, moved, size in norms:
        # The key bias has no gradient in exact arithmetic: its movement is rounding noise.
        if moved > 1e-6 * moved_most:
            assert error <= 1e-3 * moved + 1e-5 * size


def test_micro_batches_save_memory() -> None:
    config = GptConfig(vocab_size=256, seq_len=256, hidden=256, num_layers=4, num_heads=4)
    create, step, batch = gpt_step(config)
    state = jax.eval_shape(create, jax.random.key(0))
    whole = mw.parallelize(step).measured_peak_bytes(state, batch)
    cut = mw.parallelize(step, num_microbatches=8).measured_peak_bytes(state, batch)
    assert cut < whole
