"""Ray has one host of two, and no plan fits into its memory: the error says what would."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import ray
import ray.train

import meshwise as mw


def train_loop() -> None:
    def train_step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, grads = mw.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state)
        return state - grads, loss

    # On two devices each holds half of the 2 MiB and of its gradients.
    step = mw.parallelize(train_step, memory_bytes=3 * 2**20)
    state, batch = jax.ShapeDtypeStruct((512, 1024), jnp.float32), jnp.ones((8, 512))
    assert step.plan(state, batch).peak_bytes < 3 * 2**20


def text_of_failure() -> str:
    trainer = mw.ray.trainer(train_loop, hosts=(1, 2), devices_per_host=1)
    try:
        trainer.fit()
    except ray.train.WorkerGroupError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    ray.init("local", num_cpus=1, include_dashboard=False)
    text = text_of_failure()
    assert "Use more devices" in text, text
    assert "This was on 1 of 2 hosts" in text, text
    assert "with hosts=(2, 2) it waits for more" in text, text
    ray.shutdown()
    ray.init("local", num_cpus=2, include_dashboard=False)
    assert text_of_failure() == ""
    sys.stdout.write("passed\n")
