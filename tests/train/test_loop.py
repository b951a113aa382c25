"""The loop under a double of the step: resuming, stopping, saving."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from doubles.failing_programs import failing_later, forget_failures
from doubles.jit_step import JitStep, Recorder
from meshwise.errors import CheckpointError, MeshwiseError, StateLostError
from meshwise.train.checkpoint_meta import check_identity, check_resumable
from meshwise.train.loop import run_training
from meshwise.train.options import TrainOptions
from meshwise.train.text_training import text_training

pytestmark = pytest.mark.usefixtures("quick_compile", "one_layer")


@pytest.fixture
def options(tmp_path: Path) -> TrainOptions:
    return options_in(tmp_path)


@pytest.fixture(scope="module")
def told() -> Recorder:
    return Recorder()


@pytest.fixture
def whole(quick_compile: None, one_layer: None, tmp_path: Path, told: Recorder) -> Recorder:
    """What a run without a stop tells, once for all tests."""
    if not told.events:
        run_training(options_in(tmp_path / "whole"), JitStep, told)
    return told


def options_in(tmp_path: Path) -> TrainOptions:
    text = tmp_path / "text"
    text.mkdir(parents=True)
    for index in range(40):
        (text / f"{index}.txt").write_text(f"line {index} of a dull text\n" * 50)
    return TrainOptions(
        out=tmp_path / "run",
        text=text,
        model="tiny",
        seq=16,
        batch=4,
        steps=12,
        warmup_steps=4,
        dropout=0.1,
        eval_every=5,
        eval_batches=2,
        save_every=4,
    )


def test_a_run_that_is_told_to_stop_at_its_end_writes_no_text(options: TrainOptions) -> None:
    seen = Recorder()
    options = replace(options, steps=2)
    stopped = run_training(options, JitStep, seen, lambda: len(seen.of("step")) == 2)
    assert stopped.is_complete
    assert not seen.of("sample")


def test_a_run_that_has_all_its_steps_is_not_planned_again(options: TrainOptions) -> None:
    short = replace(options, steps=4, save_every=2)
    first, again, longer = Recorder(), Recorder(), Recorder()
    summary = run_training(short, JitStep, first)
    found = run_training(replace(short, steps=3), JitStep, again)
    assert again.events == [("finished", 4)]
    assert found == summary
    # A checkpoint that is torn is not taken: the last steps are done again.
    meta = options.out / "checkpoints" / "4" / "meta" / "metadata"
    meta.write_text(meta.read_text()[:-9])
    run_training(short, JitStep, longer)
    assert longer.of("resume") == [(2,)]
    assert longer.of("step") == first.of("step")[2:]
    # Without its summary it cannot say how it went.
    (options.out / "summary.json").unlink()
    run_training(short, JitStep, again)
    assert len(again.of("plan")) == 1


def test_a_run_with_all_its_steps_is_not_taken_for_another(options: TrainOptions) -> None:
    run_training(replace(options, steps=2), JitStep, Recorder())
    with pytest.raises(MeshwiseError, match="of another run:\n  seed: 0 there, 1 here"):
        run_training(replace(options, steps=2, seed=1), JitStep, Recorder())


def test_a_run_tells_what_it_does_and_learns(options: TrainOptions) -> None:
    seen = Recorder()
    summary = run_training(options, JitStep, seen)
    assert [step for step, _ in seen.of("step")] == list(range(1, 13))
    assert [step for step, _ in seen.of("heldout")] == [0, 5, 10, 12]
    assert seen.of("save") == [(4,), (8,), (12,)]
    assert summary.is_complete
    assert summary.heldout_loss < seen.of("heldout")[0][1] - 0.5
    assert summary.predicted_peak_bytes == 1000
    assert summary.actual_peak_bytes == 1100
    assert summary.predicted_collective_bytes == {"all-reduce": 14}
    assert summary.actual_collective_bytes == {}
    saved = json.loads((options.out / "summary.json").read_text())
    assert saved["steps_done"] == 12
    assert [host["name"] for host in saved["hosts"]] == ["node0", "node1"]
    kept = {path.name for path in (options.out / "checkpoints").iterdir()}
    assert kept == {"8", "12"}


def test_a_stopped_run_continues_to_the_same_losses(options: TrainOptions, whole: Recorder) -> None:
    first, second = Recorder(), Recorder()
    summary = run_training(options, JitStep, first, lambda: len(first.of("step")) == 7)
    assert not summary.is_complete
    assert first.of("save") == [(4,), (7,)]
    run_training(options, JitStep, second)
    assert second.of("resume") == [(7,)]
    assert first.of("step") + second.of("step") == whole.of("step")
    assert second.of("heldout") == whole.of("heldout")[2:]


def test_after_a_lost_state_the_next_run_has_the_same_losses(
    options: TrainOptions, whole: Recorder
) -> None:
    class Failing(JitStep):
        def __call__(self, state: Any, batch: Any) -> Any:
            if int(state.step) == 6:
                raise StateLostError(f"the last one is {self.checkpoint}")
            return super().__call__(state, batch)

    first, second = Recorder(), Recorder()
    with pytest.raises(StateLostError, match=r"the last one is .*run/checkpoints/4$"):
        run_training(options, Failing, first)
    # Resumed, it fails again, and knows from where.
    with pytest.raises(StateLostError, match=r"the last one is .*run/checkpoints/4$"):
        run_training(options, Failing, Recorder())
    run_training(options, JitStep, second)
    assert second.of("resume") == [(4,)]
    assert first.of("step")[:4] + second.of("step") == whole.of("step")


def test_an_update_that_fails_after_its_step_returned_is_not_saved(options: TrainOptions) -> None:
    class FailingLater(JitStep):
        def __call__(self, state: Any, batch: Any) -> Any:
            state, loss = super().__call__(state, batch)
            if int(state.step) == 8:
                kernel = jax.tree.leaves(state.params)[0]
                (broken,) = failing_later("memory ran out")(lambda: [kernel])()
                params = jax.tree.map(lambda x: broken if x is kernel else x, state.params)
                state = state._replace(params=params)
            return state, loss

    seen = Recorder()
    told = r"(?s)memory ran out.*the last one is .*run/checkpoints/4$"
    with pytest.raises(StateLostError, match=told):
        run_training(options, FailingLater, seen)
    forget_failures()
    assert seen.of("save") == [(4,)]
    again = Recorder()
    run_training(options, JitStep, again)
    assert again.of("resume") == [(4,)]


def test_a_finished_run_does_nothing_and_can_be_extended(options: TrainOptions) -> None:
    run_training(replace(options, steps=4), JitStep, Recorder())
    again = Recorder()
    summary = run_training(replace(options, steps=4), JitStep, again)
    assert again.of("step") == []
    assert summary.steps_done == 4
    more = Recorder()
    run_training(replace(options, steps=6), JitStep, more)
    assert [step for step, _ in more.of("step")] == [5, 6]


def test_another_run_is_not_continued(options: TrainOptions) -> None:
    run_training(replace(options, steps=2), JitStep, Recorder())
    seen = Recorder()
    with pytest.raises(MeshwiseError, match=r"of another run:\n  seed: 0 there, 1 here\nuse "):
        run_training(replace(options, seed=1), JitStep, seen)
    assert seen.events == []  # Before anything was planned.


def test_a_state_of_other_arrays_is_refused_without_a_plan(options: TrainOptions) -> None:
    folder = options.out / "checkpoints"
    run_training(replace(options, steps=2), JitStep, Recorder())
    training = text_training(options)
    state = training.shapes[0]
    check_resumable(folder, training.identity, state)
    for changed, text in (
        (
            state._replace(step=jax.ShapeDtypeStruct((), jnp.float32)),
            r"step: int32\[\] there, fl",
        ),
        (state._replace(opt_state=()), r"state opt_state/1/0/count: int32\[\] there, nothing here"),
        (state._replace(params={**state.params, "more": state.step}), "more: nothing there, int32"),
    ):
        with pytest.raises(CheckpointError, match=text):
            check_resumable(folder, training.identity, changed)
    # What is torn is for restoring to find out.
    (folder / "2" / "state" / "_METADATA").write_text("{")
    check_resumable(folder, {}, state)


def test_the_step_of_another_run_is_named_before_its_many_arrays(tmp_path: Path) -> None:
    arrays = {f"state['w'][{n}]": "float32[8]" for n in range(30)}
    with pytest.raises(CheckpointError) as caught:
        check_identity(tmp_path, 3, {"step": "a:made", **arrays}, {"step": "b:made"})
    lines = str(caught.value).splitlines()
    assert lines[1:3] == [
        "  step: a:made there, b:made here",
        "  state['w'][0]: float32[8] there, nothing here",
    ]
    assert lines[21] == "  ... and 11 more"
    assert len(lines) == 23


def test_a_changed_text_is_not_continued(options: TrainOptions) -> None:
    run_training(replace(options, steps=2), JitStep, Recorder())
    assert options.text is not None
    (options.text / "new.txt").write_text("more")
    with pytest.raises(MeshwiseError, match="text: "):
        run_training(options, JitStep, Recorder())


def test_a_text_that_cannot_be_written_does_not_cost_the_run(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no memory")

    monkeypatch.setattr("meshwise.train.run.sampled", fails)
    told = Recorder()
    run_training(options, JitStep, told)
    assert told.of("unsampled") == [("RESOURCE_EXHAUSTED: no memory",)]
    assert (options.out / "summary.json").is_file()
