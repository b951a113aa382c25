"""Stages in a V: planned, read from a file, simulated, and run as on one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest

import meshwise as mw
from doubles.layered_steps import CLIPPED, assert_equal, gpt_step, host, unet_step
from doubles.perceptron import perceptron
from meshwise.errors import PlanError
from meshwise.plan.plan import Plan
from meshwise.schedules.registry import choices
from meshwise.simulate.plan import Changes, simulate_plan
from oracle.problem import quick_jit

NAMES = ["zb-v", pytest.param("dualpipe-v", marks=pytest.mark.slow)]
CLUSTER = "2x p3.2xlarge"


def parallel(made: Any, schedule: str, **options: Any) -> Any:
    method = mw.Auto(stages=4, schedule=schedule)
    cluster = mw.Cluster.virtual(CLUSTER)
    return mw.parallelize(
        made, method=method, cluster=cluster, **({"num_microbatches": 4} | options)
    )


@pytest.mark.usefixtures("quick_steps", "x64")
@pytest.mark.parametrize("name", NAMES)
def test_its_file_trains_as_on_one_device(name: str) -> None:
    made, args = unet_step()
    plan = parallel(made, name).plan(*args)
    assert plan.mesh_of_stage == (0, 1, 1, 0)
    # What stage 1 gives to stage 2 stays where it is.
    assert [stage.send_bytes > 0 for stage in plan.stages] == [True, False, True, False]
    assert all(stage.weights is not None for stage in plan.stages)
    kept = Plan.from_json(plan.to_json())
    assert kept == plan
    replayed = mw.parallelize(made, method=mw.Replay(kept), num_microbatches=4)
    expected = [host(x) for x in jax.tree.leaves(quick_jit(made)(*args))]
    assert_equal([host(x) for x in jax.tree.leaves(replayed(*args))], expected)
    assert replayed.plan(*args) == plan


@pytest.mark.parametrize("name", NAMES)
def test_what_is_predicted_is_what_is_simulated(name: str) -> None:
    made, state, batch = perceptron((256,) * 5, 64)
    plan = parallel(made, name).plan(state, batch)
    simulation = simulate_plan(plan)
    assert simulation.timeline.step_time_s == plan.step_time_s
    for found, predicted in zip(simulation.timeline.peak_bytes, plan.mesh_peak_bytes, strict=True):
        assert found <= predicted <= 1.02 * found
    with pytest.raises(PlanError, match="interleaved-1f1b puts stages on other meshes"):
        simulate_plan(plan, Changes(schedule=choices()["interleaved-1f1b"]))
    with pytest.raises(PlanError, match=r"stages\[2\].first_device.*on mesh 1.* on mesh 0 of 2"):
        Plan.from_json(replace(plan, schedule="interleaved-1f1b").to_json())


def test_too_few_micro_batches_are_told() -> None:
    made, state, batch = perceptron((256,) * 5, 64)
    with pytest.raises(PlanError, match=r"micro-batches \(2\) at least twice the meshes, less one"):
        parallel(made, "zb-v", num_microbatches=2).plan(state, batch)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_steps", "x64")
@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_a_tied_embedding_and_clipping_are_as_on_one_device(name: str) -> None:
    made, args = gpt_step(CLIPPED, dropout=0.2)
    step = mw.parallelize(
        made,
        method=mw.Auto(stages=4, schedule=name),
        cluster=mw.Cluster.local(),
        num_microbatches=4,
    )
    expected = [host(x) for x in jax.tree.leaves(quick_jit(made)(*args))]
    assert_equal([host(x) for x in jax.tree.leaves(step(*args))], expected)
