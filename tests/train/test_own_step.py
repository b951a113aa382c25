"""`--step`: a step of the user's own in the main job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from doubles import own_steps
from doubles.jit_step import JitStep, Recorder
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import CheckpointError, TraceError
from meshwise.train.build import step_builder
from meshwise.train.loop import run_training
from meshwise.train.options import TrainOptions
from meshwise.train.own_step import made_step, own_training

RELATIVE = 1e-3  # As in `test_end_to_end`.
STEP = "doubles.own_steps:made"


@pytest.fixture
def options(tmp_path: Path) -> TrainOptions:
    return TrainOptions(out=tmp_path / "run", step=STEP, steps=6, save_every=2)


def losses(seen: Recorder) -> list[float]:
    return [loss for _, loss in seen.of("step")]


def of_one_device(num_steps: int, seed: int = 0) -> list[float]:
    """Losses of a loop of the user's own."""
    state, found = own_steps.create(jax.random.key(seed)), list[float]()
    for number in range(num_steps):
        state, loss = own_steps.step(state, own_steps.batch(number))
        found.append(float(loss))
    return found


@pytest.mark.usefixtures("quick_steps")
def test_a_step_of_ones_own_is_trained_and_goes_on_under_another_plan(
    options: TrainOptions,
) -> None:
    """By data parallel, then in two stages of two micro-batches, measured."""
    one = replace(options, cluster=cpu_cluster(2))
    flat = replace(one, method="data", steps=3)
    staged = replace(one, stages=2, microbatches=2, measure=True)
    first, second = Recorder(), Recorder()
    run_training(flat, step_builder(flat), first)
    summary = run_training(staged, step_builder(staged), second)
    assert second.of("resume") == [(3,)]
    np.testing.assert_allclose(losses(first) + losses(second), of_one_device(6), rtol=RELATIVE)
    assert len(second.of("measured")) == 1
    assert [len(plan.stages) for seen in (first, second) for (plan,) in seen.of("plan")] == [1, 2]
    assert not first.of("heldout")
    assert not second.of("sample")
    for stage in summary.stages:
        assert stage.actual_collective_bytes == stage.predicted_collective_bytes
    saved = json.loads((options.out / "summary.json").read_text())
    assert saved["step"] == STEP
    assert saved["steps_done"] == 6
    assert not saved.keys() & {"model", "num_parameters", "text", "heldout_loss", "tokens_per_s"}


@pytest.mark.parametrize(
    "made",
    [
        "made",
        "of_arrays",
        "with_static_parts",
        "of_equinox",
        "of_nnx",
        "with_numbers",
        "with_a_short_batch",
    ],
)
@pytest.mark.usefixtures("quick_steps")
def test_a_run_that_fails_goes_on_to_the_losses_of_a_whole_one(
    options: TrainOptions, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept and taken again: the state as any pytree, its place in the data, and the plan."""
    options = replace(
        options, step=f"doubles.own_steps:{made}", method="data", cluster=cpu_cluster(2)
    )
    whole, first, second = Recorder(), Recorder(), Recorder()
    build = step_builder(options)
    run_training(replace(options, out=options.out / "whole"), build, whole)
    batch = own_steps.batch
    with monkeypatch.context() as patch:
        patch.setattr(own_steps, "batch", lambda number: batch(number) if number != 5 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_training(options, build, first)
    kept: list[Any] = []

    def noted(fun: Any, plan: Any = None) -> Any:
        kept.append(plan)
        return build(fun, plan)

    run_training(options, noted, second)
    assert second.of("resume") == [(4,)]
    assert [(plan,) for plan in kept if plan is not None] == first.of("plan")
    assert kept[1:] == ([None] if made == "with_a_short_batch" else [])
    assert losses(first)[:4] + losses(second) == losses(whole)


@pytest.mark.usefixtures("quick_compile")
def test_another_state_or_function_is_not_gone_on_with(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(options, steps=1)
    run_training(options, JitStep, Recorder())
    monkeypatch.setattr(own_steps, "WIDTH", 4)
    told = r"state\['weights'\]\[0\]: float32\[8, 8\] there, float32\[4, 4\] here"
    with pytest.raises(CheckpointError, match=rf"(?s)of another run:.*{told}.*--fresh"):
        run_training(options, JitStep, Recorder())
    monkeypatch.setattr(own_steps, "other", own_steps.made, raising=False)
    with pytest.raises(CheckpointError, match=r"step: own_steps:made there, own_steps:other here"):
        run_training(replace(options, step="doubles.own_steps:other"), JitStep, Recorder())


@pytest.mark.usefixtures("quick_compile")
def test_a_run_goes_on_however_its_step_is_spelled(
    options: TrainOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "spelled.py").write_text("from doubles.own_steps import *\n")
    monkeypatch.chdir(tmp_path)
    steps = ("spelled.py:made", "spelled:made", f"{tmp_path}/spelled.py:made")
    for number, step in enumerate(steps, 1):
        seen = Recorder()
        run_training(replace(options, step=step, steps=number), JitStep, seen)
        assert len(seen.of("step")) == 1


def test_the_seed_makes_the_first_state(options: TrainOptions) -> None:
    for seed in (0, 3):
        training = own_training(replace(options, seed=seed))
        state = training.create(training.seed)
        want = own_steps.create(jax.random.key(seed))
        assert jax.tree.all(jax.tree.map(np.array_equal, state, want))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("made", "it names no function; write it as my_module:make or file.py:make"),
        ("no_such:made", "there is no module 'no_such' in "),
        ("doubles.no_such:made", "there is no module 'doubles.no_such' in "),
        ("no_such.py:made", "there is no file "),
        ("doubles.own_steps:mad", "own_steps.py has no 'mad'; it has made"),
        (
            "doubles.own_steps:WIDTH",
            "'WIDTH' must be a function that takes no arguments, and is int",
        ),
        ("takes_more", "must be a function that takes no arguments, and is (size: 'int') -> 'Any'"),
        ("two", "it must return (step, state, batch), and returned a tuple of 2"),
        ("no_tuple", "it must return (step, state, batch), and returned function"),
        ("parallelised", "its step is parallelised already; return the function for one device"),
        ("no_step", "the step must be a function that takes (state, batch), and is int"),
        ("step_of_one", "the step must be a function that takes (state, batch), and is (state)"),
        ("state_of_none", "that makes the state must be a function that takes (key), and is ()"),
        ("shapes", "state['opt'][0].count is only a shape; to train, give arrays, or a function"),
        ("one_batch", "its batch must be a function of the number of the step, so that a run that"),
        ("no_state", "its state holds no array, so there is nothing to train"),
        ("empty_leaf", "state['unused'] of shape (0, 4) has no element, which no checkpoint can"),
        ("only_state", "the step must return (state, loss), and returns dict; more than the loss"),
        ("three_results", "the step must return (state, loss), and returns tuple of 3"),
        ("other_dtype", "state['opt'][0].count is int32[] before, bfloat16[] after"),
        ("less_state", "state['opt'][0].count is int32[] before, not there after"),
        ("loss_before", "the step returns (loss, state); return (state, loss)"),
        ("loss_before_equinox", "the step returns (loss, state); return (state, loss)"),
        ("other_types", "the step must return a state of the same types as it takes it"),
        ("loss_of_each_row", "the loss must be a real scalar, and is float32[16]; as jnp.mean"),
        ("whole_loss", "the loss must be a real scalar, and is int32[]"),
        ("unnamed_loss", "the step returns no \"loss\" among 'error'"),
        ("loss_and_more", "the loss must be a real scalar, and is tuple"),
    ],
)
def test_what_cannot_be_trained_is_refused(options: TrainOptions, name: str, message: str) -> None:
    step = name if name == "made" or ":" in name else f"doubles.own_steps:{name}"
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        run_training(replace(options, step=step), JitStep, Recorder())
    assert str(caught.value).startswith(f"--step {step}: ")


def test_a_batch_of_different_numbers_of_rows_is_refused(options: TrainOptions) -> None:
    told = (
        r"step cannot be traced \(own_steps.py:\d+ \(loss_fn\): sub got incompatible shapes .*, "
        r"and its batch arguments have different numbers of rows: batch\['y'\] has 10 \(dim 0\) "
        r"where batch\['x'\] has 16; give all the same number of rows"
    )
    with pytest.raises(TraceError, match=told):
        own_training(replace(options, step="doubles.own_steps:unequal_rows"))


def test_a_batch_that_is_no_array_is_refused(options: TrainOptions) -> None:
    told = r"a leaf of the batch of type str is not an array \('a text'\); .* or make it an array"
    with pytest.raises(TraceError, match=told):
        own_training(replace(options, step="doubles.own_steps:batch_of_text"))


def test_a_file_and_what_lies_beside_it_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_own_step.py").write_text("from doubles.own_steps import *\n")
    # Named as a module of Python, which stays.
    (tmp_path / "json.py").write_text("from beside_own_step import made as make\n")
    assert made_step(f"{tmp_path}/json.py:make").batch is own_steps.batch
    assert sys.modules["json"] is json
    (tmp_path / "own_step_in_need.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    for name in ("own_step_in_need:make", "own_step_in_need.py:make"):
        with pytest.raises(TraceError, match="imports no_such_package, which is not there"):
            made_step(name)


KILLED = """
import os, signal
from pathlib import Path
from doubles.own_steps import create, step, batch as data

def batch(number):
    if number == 5 and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return data(number)

def make():
    return step, create, batch
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--hosts", "2", "--stages", "2", "--microbatches", "2")])
def test_a_run_that_is_killed_goes_on(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = (sys.executable, "-m", "meshwise", "train", "--step", "killed.py:make")
    small = ("--devices", "2", "--steps", "8", "--save-every", "2", *more)

    def train(*args: str) -> int:
        return subprocess.run(
            [*command, *small, *args], cwd=tmp_path, env={**os.environ}, timeout=240, check=False
        ).returncode

    assert train() in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert train() == 0
    assert train("--out", "whole") == 0
    runs = tmp_path / "runs" / "killed", tmp_path / "whole"
    metas = [json.loads((run / "checkpoints/8/meta/metadata").read_text()) for run in runs]
    assert metas[0]["history"] == metas[1]["history"]
    assert json.loads((runs[0] / "summary.json").read_text())["first_step"] in (2, 4)
    np.testing.assert_allclose(metas[0]["history"]["losses"], of_one_device(8), rtol=RELATIVE)
