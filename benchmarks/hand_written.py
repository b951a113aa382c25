"""The explicit program against the same plan as plain shardings under `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import meshwise as mw
from benchmarks.pairs import run_pairs
from benchmarks.workload import token_batch, training_step
from meshwise.cluster.cpu import cpu_cluster
from meshwise.models.gpt_sizes import gpt_config
from meshwise.spmd.program import compile_options, concrete_mesh, shardings

BATCH = 16
NUM_DEVICES = 8
METHODS = {"data parallel": mw.DataParallel(), "Megatron": mw.Megatron(dp=2, tp=4)}


def hand_written(quick: bool) -> dict[str, Any]:
    """Goal: at most 1.05 for each method (interleaved pairs, same compile options)."""
    num_pairs = 5 if quick else 30
    config = gpt_config("small")
    step, create = training_step(config)
    batch = token_batch(config, BATCH)
    result: dict[str, Any] = {}
    for name, method in METHODS.items():
        ours = mw.parallelize(step, method=method, cluster=cpu_cluster(NUM_DEVICES))
        state = jax.eval_shape(create, jax.random.key(0))
        plan = ours.plan(state, batch)
        mesh = concrete_mesh(plan.mesh, jax.devices()[:NUM_DEVICES])
        flat = shardings(plan.decision.inputs, mesh)
        tree = jax.tree.structure(((state, batch), {}))
        (state_sharding, batch_sharding), _ = jax.tree.unflatten(tree, flat)
        theirs = jax.jit(
            step,
            in_shardings=(state_sharding, batch_sharding),
            out_shardings=(state_sharding, None),
            donate_argnums=0,
            compiler_options=compile_options("cpu", NUM_DEVICES),
        )
        placed = jax.device_put(batch, batch_sharding)
        born = jax.jit(create, out_shardings=state_sharding)
        result[name] = run_pairs(
            _runner(ours, born, placed), _runner(theirs, born, placed), num_pairs=num_pairs
        ).to_json()
    return result


def _runner(step: Any, create: Callable[..., Any], batch: Any) -> Callable[[], None]:
    box = [create(jax.random.key(0))]

    def run() -> None:
        box[0], loss = step(box[0], batch)
        jax.block_until_ready((box[0], loss))

    return run
