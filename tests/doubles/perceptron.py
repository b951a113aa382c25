"""A step that is planned in a moment: a few layers with momentum, by their shapes alone."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

import meshwise as mw
from meshwise.planner.pipeline import plan_pipeline
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.trace.step import StepSignature


def perceptron(widths: tuple[int, ...], num_rows: int = 32) -> tuple[Any, Any, Any]:
    """Layers of some widths with momentum."""
    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in itertools.pairwise(widths)]

    def step(state: Any, batch: Any) -> Any:
        weights, momentum = state

        def loss_fn(weights: Any) -> Any:
            x = batch["x"]
            for w in weights:
                x = jnp.tanh(x @ w)
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(weights)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum)
        return (weights, momentum), loss

    rows = {
        "x": jax.ShapeDtypeStruct((num_rows, widths[0]), jnp.float32),
        "y": jax.ShapeDtypeStruct((num_rows, widths[-1]), jnp.float32),
    }
    return step, (weights, weights), rows


def wide_perceptron() -> tuple[Any, Any, Any]:
    """Three layers whose weights take a few megabytes."""
    return perceptron((512,) * 4, 64)


def perceptron_pipeline(**changes: Any) -> PlannedPipeline:
    """Plan three layers as a pipeline on one host of four, with other wishes than usual if given.

    A tenth of the work of a GPT's: for tests that ask about memory or about refusals.
    """
    step, state, batch = wide_perceptron()
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    request = PipelineRequest(
        **{
            "cluster": cluster,
            "num_layers": 3,
            "num_microbatches": (4,),
            "schedules": (ONE_F_ONE_B, EAGER),
            **changes,
        }
    )
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    return plan_pipeline(step, (state, batch), {}, signature, request)
