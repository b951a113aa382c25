"""A run takes the plan that it is given, or says at once why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

import meshwise as mw
from doubles import own_steps
from doubles.jit_step import Recorder
from doubles.pipelines import pipeline
from meshwise.cli import main
from meshwise.errors import ClusterError, InfeasibleError, PlanError
from meshwise.report.plan_file import plan_from_file
from meshwise.train.build import step_builder
from meshwise.train.given_plan import check_given_plan
from meshwise.train.loop import run_training
from meshwise.train.options import TrainOptions


def plan_of(num_rows: int, method: Any) -> mw.Plan:
    """Return a plan of the double's step, with a batch of so many rows."""
    state = jax.eval_shape(own_steps.create, jax.random.key(0))
    rows = jax.ShapeDtypeStruct((num_rows, own_steps.WIDTH), jnp.float32)
    return mw.parallelize(own_steps.step, method=method).plan(state, {"x": rows, "y": rows})


@pytest.fixture(scope="module")
def plan() -> mw.Plan:
    return plan_of(own_steps.ROWS, mw.Zero3())


@pytest.fixture
def options(tmp_path: Path, plan: mw.Plan) -> TrainOptions:
    return TrainOptions(out=tmp_path, step="doubles.own_steps:made", steps=2, plan=plan)


def test_the_plan_that_a_run_leaves_is_the_one_that_it_was_given(
    quick_compile: None, plan: mw.Plan, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    common = ["train", "--step", "doubles.own_steps:made", "--steps", "2"]
    first = CliRunner().invoke(
        main, [*common, "--out", str(tmp_path / "a"), "--plan", str(file)], catch_exceptions=False
    )
    assert first.exit_code == 0, first.output
    assert "Zero3()" in first.output
    left = tmp_path / "a" / "plan.json"
    assert plan_from_file(left) == plan
    told = CliRunner().invoke(main, ["explain", str(left)])
    assert told.exit_code == 0
    again = CliRunner().invoke(main, [*common, "--out", str(tmp_path / "b"), "--plan", str(left)])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "b" / "plan.json").read_bytes() == left.read_bytes()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stages": 2}, "--stages 2 contradicts the plan of --plan, which has 1; leave --stages"),
        ({"stages": 1, "schedule": "gpipe"}, "--schedule gpipe contradicts the plan"),
        ({"mesh": (4, 2)}, "--mesh 4x2 contradicts the plan of --plan, which has 8; leave --mesh"),
        ({"microbatches": 2}, "--microbatches 2 contradicts the plan"),
        ({"method": "zero2"}, "--method is for a search, and with --plan nothing is searched"),
        ({"offload": False}, "--offload is for a search"),
        ({"cluster": mw.Cluster.virtual("8 cpu")}, "--cluster is for a search"),
    ],
)
def test_options_that_contradict_the_plan_are_refused(
    options: TrainOptions, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(PlanError, match=text):
        check_given_plan(replace(options, **changes))


def test_options_that_say_what_the_plan_says_are_taken(options: TrainOptions) -> None:
    check_given_plan(replace(options, stages=1, mesh=(8,), microbatches="auto", memory_bytes=2**30))


def test_a_schedule_with_delays_is_told_by_its_whole_name(options: TrainOptions) -> None:
    plan = replace(pipeline(2, 8), schedule="1f1b", delays=(1, 0))
    staged = replace(options, plan=plan, stages=2)
    check_given_plan(replace(staged, schedule="1f1b-delayed"))
    with pytest.raises(PlanError, match="--schedule 1f1b contradicts .* has 1f1b-delayed; leave"):
        check_given_plan(replace(staged, schedule="1f1b"))


def test_less_memory_than_the_plan_needs_is_refused(options: TrainOptions) -> None:
    with pytest.raises(InfeasibleError, match="a device, --memory allows 100 B; allow more"):
        check_given_plan(replace(options, memory_bytes=100))


@pytest.mark.parametrize("name", ["plan", "cluster"])
def test_more_devices_than_there_are_are_refused_before_planning(
    options: TrainOptions, name: str
) -> None:
    seen = Recorder()
    there = jax.device_count()
    cluster = mw.Cluster.virtual(f"{2 * there} cpu")
    changes: Any = {"cluster": cluster, "plan": None}
    if name == "plan":
        state = jax.eval_shape(own_steps.create, jax.random.key(0))
        step = mw.parallelize(own_steps.step, method=mw.DataParallel(), cluster=cluster)
        changes = {"plan": step.plan(state, own_steps.batch(0))}
    options = replace(options, **changes)
    text = f"--{name}.* needs {2 * there} devices, and this run has {there} .cpu.; give --devices"
    with pytest.raises(ClusterError, match=text):
        run_training(options, step_builder(options), seen)
    assert not seen.events


def test_a_plan_of_another_step_is_refused_before_it_is_compiled(options: TrainOptions) -> None:
    seen = Recorder()
    other = replace(options, plan=plan_of(8, mw.DataParallel()))
    text = r"--plan: the plan is for another step or other shapes: .*float32\[16, 8\] here and"
    with pytest.raises(PlanError, match=text) as found:
        run_training(other, step_builder(other), seen)
    assert "`meshwise train --step` the same step" in str(found.value)
    assert not seen.of("plan")
