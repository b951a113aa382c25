"""How many devices a plan needs is known before it is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from doubles.jit_step import PLAN
from doubles.perceptron import perceptron
from meshwise.errors import ClusterError
from meshwise.plan.plan import Plan
from meshwise.request.devices import devices_needed

SIXTEEN = mw.Cluster.virtual("16 cpu")
STAGES: Plan = replace(PLAN, schedule="1f1b", cluster=SIXTEEN)


@pytest.mark.parametrize(
    ("method", "number"),
    [
        (mw.Auto(), 16),
        (mw.Auto(stages=2), 16),
        (mw.Zero3(), 16),
        (mw.IntraOp(), 16),
        (mw.IntraOp(mesh_shape=(2, 4)), 8),
        (mw.Heuristic(mesh_shape=(4,)), 4),
        (mw.Megatron(dp=2, tp=2), 4),
        # The planner says what is wrong with it.
        (mw.Megatron(dp=8, tp=8), 16),
        (mw.Follow(PLAN), 0),
        (mw.Replay(PLAN), 1),
        (mw.Replay(STAGES), 16),
    ],
)
def test_the_number_of_devices_follows_from_the_method(method: Any, number: int) -> None:
    assert devices_needed(method, lambda: SIXTEEN) == number


@pytest.mark.parametrize("options", [{"cluster": SIXTEEN}, {"method": mw.Replay(STAGES)}])
def test_a_step_that_could_not_run_is_not_planned(options: Any) -> None:
    fun, *shapes = perceptron((8, 16, 8), 8)
    state, batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    step = mw.parallelize(fun, **options)
    with pytest.raises(ClusterError, match="the plan needs 16 devices, this process sees 8"):
        step(state, batch)
    with pytest.raises(ClusterError, match="the plan needs 16 devices, this process sees 8"):
        step.compiled_text(state, batch)
    assert step.plans == ()
