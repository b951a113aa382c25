"""Files that commands write: tried before, and told in a line when they fail at the end."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from doubles.perceptron import perceptron
from doubles.small_disk import fill, make_read_only, small_disk
from meshwise.cli.outputs import check_writable, write_output
from meshwise.plan.plan import Plan

plan_module = importlib.import_module("meshwise.cli.plan")

OPTIONS = (
    *("--step", "cli.test_outputs:few_rows", "--cluster", "1x p3.8xlarge"),
    *("--layers", "2", "--microbatches", "2", "--stages", "1"),
)


def few_rows() -> tuple[Any, Any, Any]:
    return perceptron((16,) * 3, 8)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def test_a_file_that_can_be_written_is_not_there_after_the_trial(tmp_path: Path) -> None:
    check_writable(tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(click.ClickException, match="no folder .*none; make it first"):
        check_writable(tmp_path / "none" / "plan.json")
    with pytest.raises(click.ClickException, match="no folder .*file; make it first"):
        check_writable(tmp_path / "file" / "plan.json")
    with pytest.raises(click.ClickException, match="it is a folder; give the name of a file"):
        check_writable(tmp_path)


def test_a_full_disk_and_a_read_only_one_are_refused(disk: Path) -> None:
    out = disk / "plan.json"
    fill(disk)
    with pytest.raises(click.ClickException, match=r"takes no file \(No space left on device\)"):
        check_writable(out)
    with pytest.raises(click.ClickException, match=r"cannot write .*: No space left on device"):
        write_output(out, "x" * 10_000)
    make_read_only(disk)
    with pytest.raises(click.ClickException, match=r"takes no file \(Read-only file system\)"):
        check_writable(out)


@pytest.mark.usefixtures("compiled_kernels")
def test_a_plan_that_cannot_be_written_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    plan_pipeline = plan_module.plan_pipeline

    def planning(*args: Any) -> Any:
        folder.rmdir()
        return plan_pipeline(*args)

    monkeypatch.setattr(plan_module, "plan_pipeline", planning)
    found = CliRunner().invoke(plan_module.plan, [*OPTIONS, "--out", str(folder / "plan.json")])
    assert found.exit_code == 1
    assert Plan.from_json(found.stdout).num_microbatches == 2
    assert "Error: cannot write" in found.stderr
    assert "plan.json: No such file or directory; the plan is on the standard" in found.stderr
    assert "Traceback" not in found.output
