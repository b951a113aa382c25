"""A pipeline whose programs are so small that a step is all dispatch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from meshwise.cluster.spec import ClusterSpec

_WIDTH = 8


def small_pipeline(
    *, num_layers: int, rows: int, num_microbatches: int, cluster: ClusterSpec | None = None
) -> tuple[mw.ParallelStep, Any, Any]:
    """Return a step in two stages, a state and a batch for it.

    Args:
        num_layers: Layers of the model.
        rows: Batch size.
        num_microbatches: B.
        cluster: Where it runs; None: all devices.
    """
    rng = np.random.default_rng(0)
    params = [rng.normal(size=(_WIDTH, _WIDTH)).astype(np.float32) for _ in range(num_layers)]
    batch = {name: rng.normal(size=(rows, _WIDTH)).astype(np.float32) for name in ("x", "y")}
    tx = optax.sgd(0.001, momentum=0.9)

    def train_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            x = batch["x"]
            for w in params:
                x = jnp.tanh(x @ w)
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(state[0])
        updates, opt = tx.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), opt), loss

    step = mw.parallelize(
        train_step,
        method=mw.Auto(stages=2),
        cluster=cluster,
        num_microbatches=num_microbatches,
    )
    return step, (params, tx.init(params)), batch
