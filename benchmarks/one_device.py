"""`parallelize` on one device against plain `jax.jit`: a step, and a bare dispatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw
from benchmarks.hand_accumulation import hand_written_step
from benchmarks.pairs import run_pairs
from benchmarks.workload import token_batch, training_step
from meshwise.cluster.cpu import cpu_cluster
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step

BATCH = 4
NUM_MICROBATCHES = 4
NUM_LEAVES = 450  # About as many as the state of a GPT with Adam has.


def one_device(quick: bool) -> dict[str, Any]:
    """Goals: at most 1.02 for a step of 10 ms and more, at most 1.25 for a dispatch."""
    num_pairs = 5 if quick else 40
    config = gpt_config("small")
    step, create = training_step(config)
    batch = token_batch(config, BATCH)
    method = mw.IntraOp(mesh_shape=(1,))
    cluster = cpu_cluster(1)
    # A collection of garbage costs what the heap holds: the dispatch goes first.
    dispatch = run_pairs(
        runner(mw.parallelize(_nudge, method=method, cluster=cluster), _many_leaves, batch),
        runner(jax.jit(_nudge, donate_argnums=0), _many_leaves, batch),
        num_pairs=5 * num_pairs,
    )
    whole = run_pairs(
        runner(mw.parallelize(step, method=method, cluster=cluster), create, batch),
        runner(jax.jit(step, donate_argnums=0), create, batch),
        num_pairs=5 * num_pairs,
    )
    return {"step": whole.to_json(), "dispatch": dispatch.to_json()}


def micro_batches(quick: bool) -> dict[str, Any]:
    """Goal: at most 1.05 of gradient accumulation written by hand, on one device."""
    rows = NUM_MICROBATCHES * BATCH
    config = gpt_config("small")
    parts = model_step(config, rows)
    ours = mw.parallelize(
        parts.step,
        method=mw.IntraOp(mesh_shape=(1,)),
        cluster=cpu_cluster(1),
        num_microbatches=NUM_MICROBATCHES,
    )
    by_hand = jax.jit(hand_written_step(config, rows, NUM_MICROBATCHES), donate_argnums=0)
    batch = token_batch(config, rows)
    times = run_pairs(
        runner(ours, parts.create, batch),
        runner(by_hand, parts.create, batch),
        num_pairs=5 if quick else 100,
    )
    return times.to_json()


def _many_leaves(key: jax.Array) -> list[jax.Array]:
    del key
    return [jnp.full((4,), float(n)) for n in range(NUM_LEAVES)]


def _nudge(state: Any, batch: Any) -> Any:
    shift = batch["x"][0, 0] * 0.0
    return [leaf + shift for leaf in state], shift


def runner(step: Any, create: Callable[..., Any], batch: Any) -> Callable[[], None]:
    """Runs one step on a state of its own and waits for it."""
    device = jax.devices()[0]
    box = [jax.device_put(create(jax.random.key(0)), device)]
    inputs = jax.device_put({name: np.asarray(value) for name, value in batch.items()}, device)

    def run() -> None:
        box[0], loss = step(box[0], inputs)
        jax.block_until_ready((box[0], loss))

    return run
