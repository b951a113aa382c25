"""One GPU: `parallelize` against plain `jax.jit`, a GPT in bfloat16, time and memory."""

from __future__ import annotations

from typing import Any

import jax

import meshwise as mw
from benchmarks.one_device import runner
from benchmarks.pairs import run_pairs
from benchmarks.workload import token_batch, training_step
from meshwise.models.sizes.gpt_sizes import gpt_config

BATCH = 16


def one_gpu(quick: bool) -> dict[str, Any]:
    """Goal: at most 1.02; the memory of four micro-batches beside that of one batch."""
    if jax.default_backend() != "gpu":
        return {"skipped": "no GPU"}
    size = "125M" if quick else "350M"
    config = gpt_config(size, dtype="bfloat16", seq_len=1024)
    step, create = training_step(config)
    batch = token_batch(config, BATCH)
    result: dict[str, Any] = {"model": size, "batch": BATCH, "device": str(jax.devices()[0])}
    for num_microbatches in (1, 4):
        ours = mw.parallelize(step, num_microbatches=num_microbatches)
        state = jax.eval_shape(create, jax.random.key(0))
        plan = ours.plan(state, batch)
        times = run_pairs(
            runner(ours, create, batch),
            runner(jax.jit(step, donate_argnums=0), create, batch),
            num_pairs=5 if quick else 30,
        )
        result[f"{num_microbatches} micro-batches"] = {
            **times.to_json(),
            "predicted_step_time_s": plan.step_time_s,
            "predicted_peak_bytes": plan.peak_bytes,
            "measured_peak_bytes": ours.measured_peak_bytes(state, batch),
        }
    return result
