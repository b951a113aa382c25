"""Predicted against real step times of pipelines: layers as modelled, and as measured."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import optax

from benchmarks.workload import token_batch
from meshwise.api.init_state import born_sharded
from meshwise.api.local_cluster import local_cluster
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import plan_pipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.runtime.pipeline.executable import compile_pipeline
from meshwise.trace.step import StepSignature

ROWS = 16
NUM_LAYERS = 4
# One shape of two stages, so that both plans differ by cuts and layouts at most.
PINS = {"submesh": "1x4", "mesh": "2x2"}


def measured_layers(quick: bool) -> dict[str, Any]:
    """Nearer to what a step takes than the model."""
    changes = {"hidden": 64} if quick else {"hidden": 256, "num_heads": 4, "seq_len": 128}
    config = gpt_config("tiny", num_layers=NUM_LAYERS, **changes)
    made = model_step(config, ROWS, optax.adam(1e-3, eps=1e-3))
    batch = token_batch(config, ROWS)
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    found: dict[str, Any] = {"config": str(config), "rows": ROWS}
    for name, is_measured in (("modelled", False), ("measured", True)):
        request = PipelineRequest(
            cluster=local_cluster(),
            num_layers=NUM_LAYERS,
            num_microbatches=(4,),
            num_stages=2,
            remats=("none",),
            pins=PINS,
            measure=is_measured,
        )
        start = time.perf_counter()
        planned = plan_pipeline(made.step, (made.state, made.batch), {}, signature, request)
        planning_s = time.perf_counter() - start
        run = compile_pipeline(planned.layers, planned.plan, planned.decisions)
        homes = run.in_shardings[: len(jax.tree.leaves(made.state))]
        state = born_sharded(made.create, (jax.random.key(0),), made.state, homes, in_job=False)
        rows = jax.tree.leaves(batch)
        spent: list[float] = []
        for _ in range(12):
            start = time.perf_counter()
            results = run.run([*jax.tree.leaves(state), *rows])
            jax.block_until_ready(results)
            spent.append(time.perf_counter() - start)
            state, _ = jax.tree.unflatten(run.out_tree, results)
        real_s = statistics.median(spent[2:])
        found[name] = {
            "cuts": [stage.last_layer for stage in planned.plan.stages],
            "planning_s": planning_s,
            "predicted_s": planned.plan.step_time_s,
            "real_s": real_s,
            "predicted_over_real": planned.plan.step_time_s / real_s,
        }
    return found
