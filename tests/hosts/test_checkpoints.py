"""A checkpoint of a job is continued by any other job, and by one process."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from doubles.processes import run_job, texts
from hosts.saved_stages import HISTORY, IDENTITY, STEP, assert_equal, state, values
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.history import History


def test_stages_of_two_processes_are_saved_and_restored(tmp_path: Path) -> None:
    stages = jax.devices()[:4], jax.devices()[4:]
    with Checkpoints(tmp_path / "one", IDENTITY) as checkpoints:
        checkpoints.save(state(values(0), *stages), HISTORY)
    folders = [str(tmp_path / name) for name in ("one", "job")]
    ended = run_job("hosts.saved_stages", (2, 2), folders, limit_s=100)
    for process in ended:
        assert process.code == 0, texts(ended)
        assert "passed" in process.text, texts(ended)
    zeros = jax.tree.map(np.zeros_like, values(0))
    with Checkpoints(tmp_path / "job", IDENTITY) as checkpoints:
        found, history = checkpoints.restore(state(zeros, *stages))
    assert history == HISTORY
    assert_equal(found, state(values(1), *stages))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a job of which a process was killed while it saved."""
    folder = tmp_path_factory.mktemp("killed") / "checkpoints"
    ended = run_job("hosts.killed_saves", (2, 2), ["save", str(folder)], limit_s=100)
    assert [process.code for process in ended] == [-9, -9], texts(ended)
    assert "passed" in ended[0].text, texts(ended)
    return folder


def test_a_process_that_dies_while_it_saves_leaves_the_checkpoint_before(killed: Path) -> None:
    folder = shutil.copytree(killed, killed.with_name("one"))
    assert {path.name for path in folder.iterdir()} == {"1", "2", "5.orbax-checkpoint-tmp"}
    stages = jax.devices()[:2], jax.devices()[4:6]
    with Checkpoints(folder, IDENTITY) as checkpoints:
        found, _ = checkpoints.restore(state(values(0), *stages))
        assert_equal(found, state(values(2), *stages), step=2)
        more = History(losses=(1.0,) * STEP)
        checkpoints.save(found._replace(step=found.step + STEP - 2), more)
    assert {path.name for path in folder.iterdir()} == {"2", str(STEP)}


@pytest.mark.slow
def test_all_processes_agree_on_damage_that_one_finds(killed: Path) -> None:
    folder = shutil.copytree(killed, killed.with_name("job"))
    for process in (0, 1):
        parts = (folder / "2" / "state" / f"ocdbt.process_{process}").rglob("d/*")
        file = max(parts, key=lambda part: part.stat().st_size)
        whole = file.read_bytes()
        file.write_bytes(bytes([*whole[:-1], whole[-1] ^ 4]))
        ended = run_job("hosts.killed_saves", (2, 2), ["resume", str(folder)], limit_s=100)
        for each in ended:
            assert each.code == 0, texts(ended)
            assert "passed" in each.text, texts(ended)
        shutil.rmtree(folder / "2.damaged")


def losses(devices: tuple[int, ...], *args: str) -> list[float]:
    ended = run_job("hosts.checkpoints", devices, args, limit_s=200)
    for process in ended:
        assert process.code == 0, texts(ended)
    said = [[line for line in e.text.splitlines() if line.startswith("loss")] for e in ended]
    assert all(lines == said[0] for lines in said)
    return [float(line.split()[1]) for line in said[0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "here"),
    [(((2, 2), "2"), ((4,), "0")), (((4,), "0"), ((2, 2), "2")), (((2, 2), "2"), ((1, 1), "2"))],
)
def test_training_continues_in_another_job(tmp_path: Path, there: object, here: object) -> None:
    (saving, stages), (restoring, other_stages) = there, here  # type: ignore[misc]
    want = losses((4,), "whole", str(tmp_path / "whole"), "0")
    folder = str(tmp_path / "saved")
    found = losses(saving, "save", folder, stages) + losses(
        restoring, "restore", folder, other_stages
    )
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-8)
