"""The explicit program against plain `jax.jit` with the same plan as shardings, on 8 devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshwise as mw
from benchmarks.pairs import run_pairs
from benchmarks.workload import token_batch, training_step
from meshwise.models.gpt_sizes import gpt_config
from meshwise.spmd.program import compile_options

BATCH = 16


def explicit(quick: bool) -> dict[str, Any]:
    """Data-parallel and Megatron GPT.  Goal: ours takes at most 1.05 of the rival's time.

    The rival gets the state in the shardings of our plan, returns it in them, has its batch split
    over the data-parallel axis, and compiles with our options; the rest is left to XLA.
    """
    methods = {
        "data parallel": (mw.DataParallel(), (8,)),
        "megatron 2x4": (mw.Megatron(dp=2, tp=4), (2, 4)),
    }
    return {name: _compare(method, shape, quick) for name, (method, shape) in methods.items()}


def _compare(method: Any, shape: tuple[int, ...], quick: bool) -> dict[str, Any]:
    config = gpt_config("tiny" if quick else "small")
    step, create = training_step(config)
    key, batch = jax.random.key(0), token_batch(config, BATCH)
    ours = mw.parallelize(step, method=method)
    state = ours.init(create, key, batch)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    names = ("x", "y")[: len(shape)]
    mesh = Mesh(np.asarray(jax.devices()).reshape(shape), names)
    rows = NamedSharding(mesh, PartitionSpec("x"))
    theirs = jax.jit(
        step,
        in_shardings=(shardings, rows),
        out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
        compiler_options=compile_options(jax.devices()[0].platform, mesh.size),
    )
    placed = jax.device_put(batch, rows)
    return run_pairs(
        _runner(ours, state, placed),
        _runner(theirs, ours.init(create, key, batch), placed),
        num_pairs=5 if quick else 40,
    ).to_json()


def _runner(step: Callable[..., Any], state: Any, batch: Any) -> Callable[[], None]:
    box = [state]

    def run() -> None:
        box[0], loss = step(box[0], batch)
        jax.block_until_ready((box[0], loss))

    return run
