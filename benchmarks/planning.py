"""Seconds from an abstract step to its plan, for GPT of several depths on a (2, 4) mesh."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax

import meshwise as mw
from benchmarks.workload import abstract_batch, training_step
from meshwise.models.sizes.gpt_sizes import gpt_config

BATCH = 8  # 48 layers fit without rematerialisation


def planning(quick: bool) -> dict[str, Any]:
    """Each depth unrolled and as a scan; nothing is cached between two calls.

    Goals (2 cores): 24 layers unrolled under 10 s, 48 under 14 s, the scan the same at any depth.
    """
    repeats = 1 if quick else 3
    cases = [(2, False), (2, True)] if quick else [(24, False), (48, False), (24, True), (48, True)]
    result: dict[str, Any] = {}
    for num_layers, scan_layers in cases:
        config = gpt_config("1.3B", num_layers=num_layers, scan_layers=scan_layers)
        times_s: list[float] = []
        plan: Any = None
        for _ in range(repeats):
            step, create = training_step(config)
            start = time.perf_counter()
            parallel = mw.parallelize(
                step,
                method=mw.IntraOp(mesh_shape=(2, 4)),
                cluster=mw.Cluster.virtual("1x dgx-a100"),
            )
            state = jax.eval_shape(create, jax.random.key(0))
            plan = parallel.plan(state, abstract_batch(config, BATCH))
            times_s.append(time.perf_counter() - start)
        form = "scan" if scan_layers else "unrolled"
        result[f"{num_layers} layers {form}"] = {
            "median_s": statistics.median(times_s),
            "times_s": times_s,
            "gap": plan.gap,
            "step_time_s": plan.step_time_s,
        }
    return result
