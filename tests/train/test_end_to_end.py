"""The main job through the real planner, against the same run on one device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshwise as mw
from doubles.failing_programs import program_replaced, raising_after
from doubles.jit_step import JitStep, Recorder
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import StateLostError
from meshwise.train.build import method_of, step_builder
from meshwise.train.loop import run_training
from meshwise.train.options import TrainOptions

# Sums run in another order on a mesh; six steps of Adam amplify fp32 rounding to about 1e-5.
RELATIVE = 1e-3


@pytest.fixture
def options(tmp_path: Path) -> TrainOptions:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    return TrainOptions(
        out=tmp_path / "run",
        text=text,
        model="tiny",
        seq=16,
        batch=8,
        steps=6,
        warmup_steps=4,
        eval_every=3,
        eval_batches=1,
        save_every=3,
        mesh=(2, 4),
        method="intra",
    )


def losses(seen: Recorder) -> list[float]:
    return [loss for _, loss in seen.of("step")]


@pytest.mark.slow
def test_a_planned_run_as_users_compile_it_has_the_losses_of_one_device(
    options: TrainOptions,
) -> None:
    one, many = Recorder(), Recorder()
    run_training(replace(options, out=options.out / "one"), JitStep, one)
    summary = run_training(options, step_builder(options), many)
    np.testing.assert_allclose(losses(many), losses(one), rtol=RELATIVE)
    heldout = [loss for _, loss in many.of("heldout")]
    np.testing.assert_allclose(heldout, [x for _, x in one.of("heldout")], rtol=RELATIVE)
    assert summary.last_loss < summary.first_loss
    assert summary.actual_peak_bytes > 0
    saved = json.loads((options.out / "summary.json").read_text())
    assert saved["num_devices"] == 8


@pytest.mark.usefixtures("quick_steps", "one_layer")
def test_a_run_resumes_under_another_plan(options: TrainOptions) -> None:
    one, first, second = Recorder(), Recorder(), Recorder()
    run_training(replace(options, out=options.out / "one"), JitStep, one)
    run_training(replace(options, steps=3), step_builder(options), first)
    other = replace(options, method="data", mesh=None)
    summary = run_training(other, step_builder(other), second)
    assert second.of("resume") == [(3,)]
    np.testing.assert_allclose(losses(first) + losses(second), losses(one), rtol=RELATIVE)
    heldout = [loss for seen in (first, second) for _, loss in seen.of("heldout")]
    np.testing.assert_allclose(heldout, [x for _, x in one.of("heldout")], rtol=RELATIVE)
    assert summary.last_loss < summary.first_loss
    assert summary.actual_peak_bytes > 0
    saved = json.loads((options.out / "summary.json").read_text())
    assert saved["num_devices"] == 8


@pytest.mark.slow
@pytest.mark.usefixtures("quick_steps", "one_layer")
@pytest.mark.parametrize("order", [(0, 1), (1, 0, 2)], ids=["to", "from and back"])
def test_a_run_goes_on_in_stages_and_out_of_them(
    options: TrainOptions, order: tuple[int, ...]
) -> None:
    one = Recorder()
    steps = len(order)
    run_training(replace(options, out=options.out / "one", steps=steps), JitStep, one)
    staged = replace(
        options,
        mesh=None,
        method="auto",
        cluster=cpu_cluster(2),
        stages=2,
        microbatches=2,
        measure=True,
    )
    parts = [options, staged, replace(staged, schedule="gpipe", microbatches=4)]
    found: list[float] = []
    for done, number in enumerate(order):
        part, seen = replace(parts[number], steps=done + 1), Recorder()
        summary = run_training(part, step_builder(part), seen)
        found += losses(seen)
        ((plan,),) = seen.of("plan")
        assert len(summary.stages) == len(plan.stages) == (part.stages or 1)
        assert len(seen.of("measured")) == (part.stages is not None)
        for stage in summary.stages:
            assert (stage.actual_busy_s or 0.0) > 0.0 or part.stages is None
            assert stage.num_devices == (1 if part.stages else 8)
            # I2, with room for so small a model.
            assert stage.actual_peak_bytes == pytest.approx(stage.predicted_peak_bytes, rel=0.3)
            assert stage.actual_collective_bytes == stage.predicted_collective_bytes
    np.testing.assert_allclose(found, losses(one), rtol=RELATIVE)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_steps")
def test_a_pipeline_that_fails_in_its_update_resumes_to_the_same_losses(
    options: TrainOptions,
) -> None:
    staged = replace(
        options, mesh=None, method="auto", cluster=cpu_cluster(2), stages=2, microbatches=2,
        steps=5, save_every=2,
    )  # fmt: skip
    whole, first, second = Recorder(), Recorder(), Recorder()
    build = step_builder(staged)
    run_training(replace(staged, out=options.out / "whole"), build, whole)

    class Failing:
        def __init__(self, fun: Any, plan: Any = None) -> None:
            self.step: Any = build(fun, plan)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.step, name)

        def __call__(self, state: Any, batch: Any) -> Any:
            if int(state.step) < 3:
                return self.step(state, batch)
            error = raising_after(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED"))
            with program_replaced(self.step, "apply of layer 0", error):
                return self.step(state, batch)

    with pytest.raises(StateLostError, match=r"RESOURCE_EXHAUSTED\); the last one is .*/2$"):
        run_training(staged, Failing, first)
    run_training(staged, build, second)
    assert second.of("resume") == [(2,)]
    assert losses(first)[:2] + losses(second) == losses(whole)


def test_every_method_name_stands_for_a_method(options: TrainOptions) -> None:
    names = {
        "auto": "IntraOp(mesh_shape=(2, 4)",
        "intra": "IntraOp(mesh_shape=(2, 4)",
        "data": "DataParallel()",
        "zero2": "Zero2()",
        "zero3": "Zero3()",
        "megatron:2x4": "Megatron(dp=2, tp=4",
        "heuristic": "Heuristic(mesh_shape=(2, 4))",
    }
    for name, text in names.items():
        assert repr(method_of(replace(options, method=name))).startswith(text)
    auto = replace(options, method="auto", mesh=None)
    assert method_of(auto) == mw.Auto()
    staged = replace(auto, stages="auto")
    assert method_of(staged) == mw.Auto(stages="auto")
    assert method_of(replace(staged, schedule="gpipe")).schedule == "gpipe"
    # A pipeline of one micro-batch would be one stage after the other.
    assert [auto.num_microbatches, staged.num_microbatches] == [1, "auto"]
    with pytest.raises(ValueError, match="no method 'magic'"):
        method_of(replace(options, method="magic"))
