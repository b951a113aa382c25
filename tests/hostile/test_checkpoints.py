"""Files of a checkpoint that others changed: what was saved comes back, or a typed error does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from hostile.bounds import bounded
from hostile.mutations import damaged, documents, json_of
from hostile.searches import COUNTS, search
from meshwise.errors import CheckpointError
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.history import History
from meshwise.train.step import TrainState

STEP = 2
HISTORY = History(losses=(1.5, 1.25), heldout=((0, 2.0),))


def state(step: int) -> TrainState:
    weights = np.random.default_rng(step).normal(size=(16, 4)).astype(np.float32)
    return TrainState(jnp.int32(step), {"w": jnp.asarray(weights)}, None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with Checkpoints(folder, {"seed": 0}) as checkpoints:
        checkpoints.save(state(STEP), HISTORY)
    return folder


def restored(folder: Path) -> tuple[TrainState, History] | None:
    """Return what the checkpoint holds; None where it is refused, with the name of the folder."""
    with bounded(), Checkpoints(folder, {"seed": 0}) as checkpoints:
        try:
            return checkpoints.restore(state(0))
        except CheckpointError as error:
            text = str(error)
    assert str(folder) in text
    assert len(text) < 10_000
    return None


def check(folder: Path, file: Path, data: bytes) -> None:
    """Change a file, and restore."""
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        result = restored(folder)
        if result is None:
            return
        found, history = result
        assert history == HISTORY
        for new, want in zip(jax.tree.leaves(found), jax.tree.leaves(state(STEP)), strict=True):
            assert np.asarray(new).tobytes() == np.asarray(want).tobytes()
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize("count", COUNTS)
def test_bytes_of_any_file(count: int, saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "checkpoints"))
    files = sorted(path for path in (folder / str(STEP)).rglob("*") if path.is_file())
    contents = {file: file.read_bytes() for file in files}
    changes = st.sampled_from(files).flatmap(
        lambda file: st.tuples(st.just(file), damaged([contents[file]]))
    )

    def changed(change: tuple[Path, bytes]) -> None:
        check(folder, *change)

    search(changes, changed, count)


@pytest.mark.parametrize("count", COUNTS)
def test_what_orbax_notes_is_not_needed(count: int, saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "checkpoints"))
    file = folder / str(STEP) / "_CHECKPOINT_METADATA"
    notes = json.loads(file.read_text())

    def changed(data: bytes) -> None:
        file.write_bytes(data)
        assert restored(folder) is not None

    search(documents([notes], json_of), changed, count)
    for data in (b"[" * 10**6, b"{}", b"[]", b" " * 2**22):
        changed(data)


@pytest.mark.parametrize("count", COUNTS)
def test_what_a_checkpoint_says_of_its_run(count: int, saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "checkpoints"))
    meta = {"identity": {"seed": 0}, "history": HISTORY.to_json()}
    file = folder / str(STEP) / "meta" / "metadata"
    search(documents([meta], json_of), lambda data: check_meta(folder, file, data), count)


def check_meta(folder: Path, file: Path, data: bytes) -> None:
    """Let a checkpoint say something else of its run, without a checksum, and restore."""
    file.write_bytes(data)
    result = restored(folder)
    if result is None:
        return
    found, history = result
    assert int(found.step) == STEP == len(history.losses)
    assert all(isinstance(loss, float) for loss in history.losses)
