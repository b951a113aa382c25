"""`plan --as`: the options of a trainer and the difference from the free plan, as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from meshwise.cli.option_names import shown
from meshwise.cli.plan import plan
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step
from meshwise.plan.plan import Plan

pytestmark = pytest.mark.usefixtures("compiled_kernels", "layers_known")

OF_ALL = ("--cluster", "1x p3.8xlarge", "--microbatches", "4", "--schedule", "1f1b")
ASKED = ("--step", "cli.test_plan_as:gpt", *OF_ALL)


def gpt() -> tuple[Any, Any, Any]:
    sizes = {"hidden": 256, "num_heads": 4, "num_layers": 2, "seq_len": 64, "vocab_size": 512}
    return model_step(gpt_config("tiny", **sizes), 16).abstract


def run(*options: str) -> Result:
    return CliRunner().invoke(plan, [*ASKED, *options])


def test_options_and_the_difference_are_written(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    found = run("--as", "megatron", "--json", "--out", str(out))
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["trainer"] == "Megatron-LM (megatron-core 0.19.2)"
    assert answer["options"]["--global-batch-size"] == "16"
    free = Plan.from_json(out.read_text())
    assert answer["free"] == {"step_time_s": free.step_time_s, "formula_s": free.formula_s}
    share = answer["step_time_s"] / free.step_time_s - 1
    assert answer["slower_share"] == pytest.approx(share)
    # Schedules apart, a trainer's points are plans of ours.
    assert share >= -1e-6 or answer["point"]["chunks"] > 1
    parts = answer["more_work_s"] + answer["more_waiting_s"]
    assert parts == pytest.approx(answer["step_time_s"] - free.step_time_s)


def test_the_text_can_be_copied() -> None:
    found = run("--as", "maxtext")
    assert found.exit_code == 0, found.output
    head, options = found.stdout.split("\n\n")
    assert head.startswith("MaxText 0.2.5: the fastest of ")
    assert "than the free plan: its busiest stage works" in " ".join(head.split())
    assert max(map(len, head.splitlines())) <= 120
    assert "per_device_batch_size: " in options


def test_what_no_trainer_can_be_asked_is_refused() -> None:
    assert "leave --pin and --measure out" in run("--as", "megatron", "--pin", "stages=1").output
    mixed = run("--as", "megatron", "--cluster", "1x p3.8xlarge + 1x dgx-a100")
    assert mixed.exit_code == 2
    assert "all hosts must be equal" in mixed.output
    small = run("--as", "megatron", "--memory", "1KiB")
    assert small.exit_code == 1
    assert run("--as", "deepspeed").exit_code == 2


def test_rivals_stand_on_the_page(tmp_path: Path) -> None:
    page, out = tmp_path / "plan.html", tmp_path / "plan.json"
    found = run("--rivals", "--html", str(page), "--out", str(out))
    assert found.exit_code == 0, found.output
    assert "zero-3: " in found.stderr
    text = page.read_text()
    for name in ("data parallel", "ZeRO-2", "ZeRO-3", "Megatron-LM"):
        assert f">{name}<" in text
    assert Plan.from_json(out.read_text()).to_json() == out.read_text()


def test_who_stops_the_search_of_rivals_has_plan_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwise.planner.rival_methods.rivals_of_pipeline", stopped)
    page, out = tmp_path / "plan.html", tmp_path / "plan.json"
    found = run("--rivals", "--html", str(page), "--out", str(out))
    assert found.exit_code == 1
    assert found.stdout == shown(Plan.from_json(out.read_text()), "plan").explain()
    assert "  1f1b, " in found.stderr
    assert " s a step simulated, " in found.stderr
    assert "stopped while rivals were priced" in found.stderr
    assert "<h2>Stages</h2>" in page.read_text()
    assert ">ZeRO-3<" not in page.read_text()


def test_a_file_that_cannot_be_written_is_named_before_rivals_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("rivals are searched")

    def full(path: Path, _: str) -> None:
        raise click.ClickException(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("meshwise.planner.rival_methods.rivals_of_pipeline", searched)
    monkeypatch.setattr("meshwise.cli.plan.write_output", full)
    found = run("--rivals", "--html", str(tmp_path / "plan.html"))
    assert found.exit_code == 1
    assert "plan.html: No space left on device; the plan is on the standard" in found.stderr


def test_where_rivals_are_not_priced() -> None:
    assert "--rivals goes with --html" in run("--rivals").output
    page = ("--rivals", "--html", "plan.html")
    mixed = run(*page, "--cluster", "1x p3.8xlarge + 1x dgx-a100")
    assert "all hosts must be equal" in mixed.output
    assert "leave one out" in run(*page, "--measure").output
