"""A folder that takes no files ends no training, and is named before it costs a plan."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doubles.jit_step import JitStep, Recorder
from doubles.small_disk import fill, make_read_only, small_disk
from meshwise.errors import CheckpointError
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.history import History
from meshwise.train.loop import run_training
from meshwise.train.options import TrainOptions
from meshwise.train.step import TrainState


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def state(step: int, rows: int = 8) -> TrainState:
    values = np.random.default_rng(step).normal(size=(rows, 64)).astype(np.float32)
    return TrainState(jnp.int32(step), {"w": jnp.asarray(values)}, (None,))


def history(step: int) -> History:
    return History(losses=(1.0,) * step)


def test_a_disk_that_fills_up_costs_one_checkpoint(disk: Path) -> None:
    with Checkpoints(disk / "checkpoints", {}) as checkpoints:
        checkpoints.save(state(1), history(1))
        checkpoints.wait()
        checkpoints.save(state(2, rows=8000), history(2))  # 2 MB.
        with pytest.raises(CheckpointError, match=r"state of step 2 .*/checkpoints: .*No space"):
            checkpoints.wait()
        assert checkpoints.newest_step == 1
        # What was written of it does not take up the room.
        assert not list((disk / "checkpoints").glob("2*"))
        filling = fill(disk)
        with pytest.raises(CheckpointError, match=r"state of step 3 .*: No space left"):
            checkpoints.save(state(3), history(3))
        filling.unlink()
        for step in (4, 5):
            checkpoints.save(state(step), history(step))
        checkpoints.wait()
        found, _ = checkpoints.restore(state(0))
        assert int(found.step) == 5
    assert sorted(path.name for path in (disk / "checkpoints").iterdir()) == ["4", "5"]


def test_a_disk_that_becomes_read_only_names_itself(disk: Path) -> None:
    with Checkpoints(disk / "checkpoints", {}) as checkpoints:
        checkpoints.save(state(1), history(1))
        checkpoints.wait()
        make_read_only(disk)
        with pytest.raises(CheckpointError, match=r"state of step 2 .*: Read-only file system"):
            checkpoints.save(state(2), history(2))
        assert checkpoints.newest_step == 1


@pytest.fixture
def options(tmp_path: Path) -> TrainOptions:
    text = tmp_path / "text.txt"
    text.write_text("the same line again and again\n" * 100)
    return TrainOptions(
        out=tmp_path / "run", text=text, model="tiny", seq=16, batch=4, steps=8, eval_every=4,
        eval_batches=1, save_every=2,
    )  # fmt: skip


def breaking(options: TrainOptions, actions: dict[int, Callable[[Path], object]]) -> Any:
    """A step that does something to the folder of checkpoints when so many steps are done."""

    class Breaking(JitStep):
        def __call__(self, state: Any, batch: Any) -> Any:
            done, folder = int(state.step), options.out / "checkpoints"
            if done in actions:
                settle(folder, {str(n) for n in (done - 1, done - 3) if n > 0})
                actions[done](folder)
            return super().__call__(state, batch)

    return Breaking


def settle(folder: Path, names: set[str]) -> None:
    """Wait until nothing is being written; the folder may be away."""
    deadline = time.monotonic() + 20
    while folder.is_dir() and {path.name for path in folder.iterdir()} != names:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def to_file(folder: Path) -> None:
    """In place of the folder there is a file."""
    folder.rename(folder.with_name("away"))
    folder.write_text("")


def to_folder(folder: Path) -> None:
    folder.unlink()
    folder.with_name("away").rename(folder)


@pytest.mark.usefixtures("quick_compile", "one_layer")
def test_training_goes_on_without_the_folder_and_saves_when_it_is_back(
    options: TrainOptions,
) -> None:
    seen = Recorder()
    # Between the saves of steps 2, 4, 6 and 8.
    step = breaking(options, {3: to_file, 5: to_folder})
    summary = run_training(options, step, seen)
    assert seen.of("save") == [(2,), (6,), (8,)]
    ((number, text),) = seen.of("unsaved")
    assert number == 4
    assert str(options.out / "checkpoints") in text
    assert "File exists" in text
    assert summary.steps_done == 8
    assert {path.name for path in (options.out / "checkpoints").iterdir()} == {"6", "8"}


@pytest.mark.usefixtures("quick_compile", "one_layer")
def test_a_folder_that_vanished_is_made_anew(options: TrainOptions) -> None:
    seen = Recorder()
    run_training(options, breaking(options, {5: shutil.rmtree}), seen)
    assert seen.of("save") == [(2,), (4,), (6,), (8,)]


@pytest.mark.usefixtures("quick_compile", "one_layer")
def test_a_last_state_that_is_not_saved_is_an_error_after_the_summary(
    options: TrainOptions,
) -> None:
    seen = Recorder()
    with pytest.raises(
        CheckpointError, match=r"the state of step 8 is not saved in .*File exists; no"
    ):
        run_training(options, breaking(options, {7: to_file}), seen)
    assert len(seen.of("step")) == 8
    ((summary,),) = seen.of("end")
    assert summary.is_complete
    assert (options.out / "summary.json").is_file()
    to_folder(options.out / "checkpoints")
    again = Recorder()
    run_training(options, JitStep, again)
    assert again.of("resume") == [(6,)]


@pytest.mark.usefixtures("quick_compile", "one_layer")
def test_a_run_resumes_from_the_one_before(options: TrainOptions) -> None:
    run_training(options, JitStep, Recorder())
    metadata = options.out / "checkpoints" / "8" / "meta" / "metadata"
    metadata.write_text("{")
    seen = Recorder()
    run_training(options, JitStep, seen)
    ((step, path, text),) = seen.of("damaged")
    assert (step, path.name) == (8, "8.damaged")
    assert str(metadata) in text
    assert seen.of("resume") == [(6,)]
    assert seen.of("save") == [(8,)]


def never(_fun: Any) -> Any:
    raise AssertionError("it was planned")


def test_a_folder_that_takes_no_files_is_found_before_planning(
    options: TrainOptions, tmp_path: Path
) -> None:
    for out in (options.text, tmp_path / "text.txt" / "below"):
        assert out is not None
        with pytest.raises(CheckpointError, match="cannot write checkpoints to .*another --out"):
            run_training(replace(options, out=out), never, Recorder())


def test_a_full_or_read_only_disk_is_found_before_planning(
    options: TrainOptions, disk: Path
) -> None:
    options = replace(options, out=disk / "run")
    fill(disk)
    with pytest.raises(CheckpointError, match="No space left on device; make room there"):
        run_training(options, never, Recorder())
    make_read_only(disk)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        run_training(options, never, Recorder())


def test_checkpoints_are_on_the_devices_again_after_damage(tmp_path: Path) -> None:
    """The arrays of the state were deleted for the checkpoint that then failed."""
    with Checkpoints(tmp_path, {}) as checkpoints:
        for step in (1, 2):
            checkpoints.save(state(step), history(step))
        checkpoints.wait()
        # Whole, but with other arrays.
        shutil.rmtree(tmp_path / "2")
    with Checkpoints(tmp_path, {}) as checkpoints:
        other = state(2)._replace(params={"v": jnp.ones(3)})
        checkpoints.save(other, history(2))
        like = state(0)
        told: list[Any] = []
        found, _ = checkpoints.restore(like, lambda *args: told.append(args))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(like))
        assert int(found.step) == 1
        np.testing.assert_array_equal(found.params["w"], state(1).params["w"])
