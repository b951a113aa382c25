"""Losses of a run on disk, line by line."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from doubles.jit_step import JitStep, Recorder
from meshwise.errors import CheckpointError
from meshwise.train.loop import run_training
from meshwise.train.loss_file import FILE, LossFile, metrics_in
from meshwise.train.options import TrainOptions


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / FILE).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def options(quick_compile: None, tmp_path: Path) -> TrainOptions:
    return TrainOptions(out=tmp_path, step="doubles.own_steps:of_arrays", steps=4, save_every=2)


def test_a_run_writes_loss_and_metrics_of_each_step_with_all_digits(options: TrainOptions) -> None:
    seen = Recorder()
    summary = run_training(options, JitStep, seen)
    rows = rows_of(options.out)
    assert [(int(row["step"]), float(row["loss"])) for row in rows] == seen.of("step")
    for row in rows:
        assert float(row["root"]) == pytest.approx(float(row["loss"]) ** 0.5, rel=1e-6)
    assert summary.final_loss == float(rows[-1]["loss"])
    saved = json.loads((options.out / "summary.json").read_text())
    assert saved["final_loss"] == seen.of("step")[-1][1]


def test_a_run_that_goes_on_has_each_step_once(options: TrainOptions) -> None:
    whole, short = Recorder(), replace(options, out=options.out / "short", steps=3, save_every=3)
    run_training(options, JitStep, whole)
    run_training(replace(short, steps=2), JitStep, Recorder())
    lines = (short.out / FILE).read_text()
    # As a run that was killed after its last checkpoint, in the middle of a line.
    (short.out / FILE).write_text(lines + "3,0.5,0.7\r\n4,0.2")
    run_training(replace(short, steps=4), JitStep, Recorder())
    assert rows_of(short.out) == rows_of(options.out)
    run_training(replace(short, steps=1, fresh=True), JitStep, Recorder())
    assert rows_of(short.out) == rows_of(options.out)[:1]


def test_lines_that_are_lost_come_from_the_checkpoint_without_metrics(tmp_path: Path) -> None:
    for text in (None, "", "step\n1\n", "nonsense", "step,loss\n1,0.25,3\n", "step,loss\nx,y\n"):
        if text is not None:
            (tmp_path / FILE).write_text(text)
        with LossFile(tmp_path, [0.5, 0.25]) as file:
            file.add(3, 0.1, {"norm": jnp.float32(2)})
        assert [tuple(row.values()) for row in rows_of(tmp_path)] == [
            ("1", "0.5", ""),
            ("2", "0.25", ""),
            ("3", "0.1", "2.0"),
        ]


def test_a_half_written_line_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"step,loss,norm\r\n1,0.5,0.125\r\n2,0.25,0.0")
    with LossFile(tmp_path, [0.5, 0.25]):
        pass
    assert [row["norm"] for row in rows_of(tmp_path)] == ["0.125", ""]


def test_lines_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    with LossFile(tmp_path, []) as file:
        for step in (1, 2):
            file.add(step, 1 / step, {})
            assert len(rows_of(tmp_path)) == step


def test_metrics_are_the_real_scalars() -> None:
    result: Any = {
        "loss": jnp.float32(1),
        "norm": {"grad": jnp.bfloat16(2), "by layer": jnp.ones(3)},
        "step": jnp.int32(7),
        "overflow": jnp.bool_(True),
        "key": jax.random.key(0),
        "complex": jnp.complex64(1),
    }
    assert {n: x.item() for n, x in metrics_in(result).items()} == {
        "norm/grad": 2.0,
        "step (metric)": 7,
        "overflow": True,
    }
    assert metrics_in(jnp.float32(1)) == {}


def test_no_metric_takes_the_column_of_another() -> None:
    result = {"a": {"b": jnp.float32(1)}, "a/b": jnp.float32(2)}
    assert {n: x.item() for n, x in metrics_in(result).items()} == {"a/b": 1.0, "['a/b']": 2.0}


def test_a_file_that_cannot_be_written_costs_no_step(options: TrainOptions) -> None:
    (options.out / FILE).mkdir()
    seen = Recorder()
    with pytest.raises(CheckpointError, match=r"losses.csv is not written: .*irectory"):
        run_training(options, JitStep, seen)
    assert len(seen.of("step")) == 4
    assert seen.of("save") == [(2,), (4,)]
