"""`meshwise simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from doubles.pipelines import pipeline, with_memory
from meshwise.cli import main
from meshwise.units import GIB

PLAN = pipeline(4, 16, "2x p3.16xlarge")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    path.write_text(PLAN.to_json())
    return str(path)


def test_a_plan_as_text_as_json_and_as_trace(file: str, tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    text = CliRunner().invoke(main, ["simulate", file, "--trace", str(trace)])
    assert text.exit_code == 0, text.output
    assert "4 stages on 2x p3.16xlarge, batch 64 in 16 micro-batches, schedule 1f1b" in text.output
    assert max(map(len, text.output.splitlines())) <= 100
    assert len(json.loads(trace.read_text())["traceEvents"]) > 4 * 2 * 16
    run = CliRunner().invoke(main, ["simulate", "-", "--json"], input=PLAN.to_json())
    data = json.loads(run.output)
    assert data["step_time_s"] == PLAN.step_time_s
    assert data["bubble_share"] == PLAN.bubble_share
    assert data["fits"]
    busy = [stage["utilisation"] for stage in data["stages"]]
    assert 1 - sum(busy) / 4 == pytest.approx(data["bubble_share"])
    assert data["device_flop_per_s"] == pytest.approx(3 * 1e15 / 16 / PLAN.step_time_s)


def test_what_does_not_fit_is_said_first_in_red() -> None:
    text = with_memory(PLAN, 5 * GIB, 16 * GIB, 5 * GIB, 16 * GIB).to_json()
    piped = CliRunner().invoke(main, ["simulate", "-"], input=text)
    assert piped.exit_code == 0, piped.output
    lines = piped.output.splitlines()
    assert lines[0].startswith(
        "does not fit: stage 0 needs 6.25 GiB, a device of 2x p3.16xlarge has 5 GiB: 1.25 GiB too "
    )
    assert "stage 2 needs 5.25 GiB of 5 GiB: 256 MiB too much" in " ".join(lines[:3])
    assert piped.output.count("does not fit") == 1
    shown = CliRunner().invoke(main, ["simulate", "-"], input=text, color=True)
    assert shown.output.startswith("\x1b[31mdoes not fit: ")
    assert shown.output.replace("\x1b[31m", "").replace("\x1b[0m", "") == piped.output
    run = CliRunner().invoke(main, ["simulate", "-", "--json"], input=text)
    data = json.loads(run.output)
    assert data["fits"] is False
    assert [item["stages"] for item in data["too_large"]] == [[0], [2]]


def test_changes_are_simulated(file: str) -> None:
    run = CliRunner().invoke(
        main,
        ["simulate", file, "--schedule", "gpipe", "--microbatches", "32",
         "--cluster", "2x dgx-a100"],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    assert "32 micro-batches, schedule gpipe" in run.output
    # What was taken for granted stands above the number, and beside it.
    assert run.output.startswith(
        "note: times and bytes of a micro-batch are those of the plan's 16 "
    )
    above = " ".join(run.output[: run.output.index("32 micro-batches, schedule")].split())
    assert "plan with --microbatches 32" in above
    assert "are here on A100-SXM4-80GB" in above
    told = " ".join(run.output.split())
    assert "(simulated; times and bytes of 16 micro-batches carried over to 32)" in told
    assert max(map(len, run.output.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--microbatches", "5"], 1, "5 micro-batches do not divide the batch of 64"),
        (["--cluster", "1x p3.8xlarge"], 1, "are not in cluster '1x p3.8xlarge'"),
        (["--cluster", "1x nothing"], 2, "no host"),
        (["--schedule", "nothing"], 2, "'nothing' is not one of"),
        (["--trace", "missing/step.json"], 1, "no folder missing; make it first"),
    ],
)
def test_mistakes(file: str, arguments: list[str], code: int, message: str) -> None:
    run = CliRunner().invoke(main, ["simulate", file, *arguments])
    assert run.exit_code == code
    assert message in run.output


def test_no_pipeline(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["simulate", str(tmp_path / "none.json")])
    assert run.exit_code == 1
    assert "none.json: No such file or directory" in run.output
    run = CliRunner().invoke(main, ["simulate", "-"], input='{"format": "meshwise-profile"}')
    assert "must be 'meshwise-plan' or 'meshwise-pipeline', got 'meshwise-profile'" in run.output


def test_a_stage_of_one_layer_is_told_by_one_number() -> None:
    text = pipeline(4, 16, "2x p3.16xlarge", layers_a_stage=1).to_json()
    run = CliRunner().invoke(main, ["simulate", "-"], input=text)
    assert run.exit_code == 0, run.output
    assert [line.split()[1] for line in run.output.splitlines()[-4:]] == ["0", "1", "2", "3"]
