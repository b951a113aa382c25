"""Whatever stands in a step for the user's equations carries the user's lines, never ours."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwise as mw
from meshwise.planner.step import plan_call
from meshwise.planner.step_call import StepCall
from meshwise.request.plan_request import PlanRequest
from meshwise.trace.step import StepSignature

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
OPTIMISER = optax.adam(1e-3)
# The sizes of the weights are odd, so that some are padded.
WEIGHTS = {
    "table": jax.ShapeDtypeStruct((1001, 63), "float32"),
    "up": jax.ShapeDtypeStruct((63, 1023), "float32"),
    "down": jax.ShapeDtypeStruct((1023, 63), "float32"),
}
BATCH = {
    "tokens": jax.ShapeDtypeStruct((1024,), "int32"),
    "target": jax.ShapeDtypeStruct((1024, 63), "float32"),
}


def step(state: Any, batch: Any) -> Any:
    """Two layers behind a table, with noise and Adam."""

    def loss_fn(weights: Any) -> Any:
        hidden = jnp.take(weights["table"], batch["tokens"], axis=0)
        hidden = jnp.tanh(hidden @ weights["up"]) @ weights["down"]
        hidden *= jax.random.bernoulli(jax.random.key(0), 0.9, hidden.shape)
        return jnp.mean((hidden - batch["target"]) ** 2)

    weights, moments = state
    loss, gradients = mw.value_and_grad(loss_fn)(weights)
    updates, moments = OPTIMISER.update(gradients, moments)
    return (optax.apply_updates(weights, updates), moments), loss


def lines_of(graph: Any) -> set[str]:
    """The source lines of all operators, also of those in bodies."""
    found: set[str] = set()
    for op in graph.operators:
        found.add(op.where)
        for body in op.bodies:
            found |= lines_of(body)
    return found


@pytest.mark.parametrize("count", [1, 4])
def test_operators_of_one_mesh_are_named_by_the_users_lines(count: int) -> None:
    state = (WEIGHTS, jax.eval_shape(OPTIMISER.init, WEIGHTS))
    call = StepCall(fun=step, args=(state, BATCH), kwargs={}, signature=SIGNATURE)
    request = PlanRequest(
        method=mw.Auto(),
        cluster=lambda: mw.Cluster.virtual("1x p3.8xlarge"),
        num_microbatches=count,
    )
    lines = lines_of(plan_call(call, request).traced.graph)
    files = {re.sub(r":.*", "", line) for line in lines}
    assert files <= {"test_source_lines.py", ""}


def test_sums_over_micro_batches_are_named_by_what_they_add_up() -> None:
    state = (WEIGHTS, jax.eval_shape(OPTIMISER.init, WEIGHTS))
    method = mw.Auto(stages=2, schedule="1f1b")
    planned = mw.parallelize(
        step, method=method, cluster=mw.Cluster.virtual("1x p3.8xlarge"), num_microbatches=4
    )
    text = planned.plan(state, BATCH).to_json()
    files = set(re.findall(r" at ([\w.]+\.py):\d", text))
    assert files == {"test_source_lines.py"}
