"""`meshwise explain`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import meshwise as mw
from doubles.golden_plans import golden_plan
from doubles.pipelines import pipeline, with_memory
from meshwise.cli import main
from meshwise.cli.option_names import shown as with_option_names
from meshwise.report.schedules import elsewhere_text
from meshwise.units import GIB


@pytest.fixture(scope="module")
def plan() -> mw.Plan:
    return golden_plan("product-priced")


def text_of(plan: mw.Plan, *, full: bool = False) -> str:
    return with_option_names(plan, "plan").explain(full=full) + elsewhere_text(plan)


def test_a_file_as_text_and_as_json(plan: mw.Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    text = CliRunner().invoke(main, ["explain", str(path)])
    assert (text.exit_code, text.output) == (0, text_of(plan))
    assert "What forcing another choice costs" in text.output
    piped = CliRunner().invoke(main, ["explain", "-"], input=plan.to_json())
    assert piped.output == text.output
    data = json.loads(CliRunner().invoke(main, ["explain", str(path), "--json"]).output)
    assert data["step_time_s"] == plan.step_time_s
    assert [a["layout"] for a in data["stages"][0]["layers"][0]["arguments"]] == [
        str(layout) for layout in plan.decision.inputs
    ]
    assert len(data["rivals"]) == 2


def test_a_pipeline_as_text_and_as_json(tmp_path: Path) -> None:
    plan = pipeline()
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    text = CliRunner().invoke(main, ["explain", str(path)])
    assert (text.exit_code, text.output) == (0, text_of(plan))
    data = json.loads(CliRunner().invoke(main, ["explain", str(path), "--json"]).output)
    assert data["gap"] == plan.gap
    assert [s["peak_bytes"] for s in data["stages"]] == [s.peak_bytes for s in plan.stages]


def test_the_full_text_has_every_layer() -> None:
    plan = pipeline(4, 16, "2x p3.16xlarge")
    full = CliRunner().invoke(main, ["explain", "-", "--full"], input=plan.to_json())
    assert (full.exit_code, full.output) == (0, text_of(plan, full=True))
    assert "layer 7 in stage 2" in full.output
    assert "layer 7 in stage 2" not in text_of(plan)
    both = CliRunner().invoke(main, ["explain", "-", "--full", "--json"], input=plan.to_json())
    assert both.exit_code == 2
    assert "leave --full out" in both.output


def test_what_does_not_fit_is_said_first_in_red(plan: mw.Plan) -> None:
    stage = dataclasses.replace(plan.stages[0], resident_bytes=0, temporary_bytes=5 * GIB)
    for large in (
        with_memory(pipeline(), 5 * GIB, 5 * GIB),
        dataclasses.replace(plan, stages=(stage,)),
    ):
        piped = CliRunner().invoke(main, ["explain", "-"], input=large.to_json())
        assert (piped.exit_code, piped.output) == (0, text_of(large))
        head, rest = text_of(large).split("\n\n", 1)
        assert head.startswith("does not fit: ")
        shown = CliRunner().invoke(main, ["explain", "-"], input=large.to_json(), color=True)
        assert shown.output == f"\x1b[31m{head}\x1b[0m\n\n{rest}"
        run = CliRunner().invoke(main, ["explain", "-", "--json"], input=large.to_json())
        data = json.loads(run.output)
        assert data["fits"] is False
        (item,) = data["too_large"]
        assert (item["stages"], item["memory_bytes"]) in (([0], 5 * GIB), ([0], 4 * GIB))
        assert item["excess_bytes"] == item["peak_bytes"] - item["memory_bytes"] > 0


def test_what_fits_is_shown_as_it_is(plan: mw.Plan) -> None:
    for small in (pipeline(), plan):
        shown = CliRunner().invoke(main, ["explain", "-"], input=small.to_json(), color=True)
        assert shown.output == text_of(small)
        run = CliRunner().invoke(main, ["explain", "-", "--json"], input=small.to_json())
        data = json.loads(run.output)
        assert (data["fits"], data["too_large"]) == (True, [])


def test_a_plan_of_one_mesh_is_simulated_as_one_program(plan: mw.Plan) -> None:
    run = CliRunner().invoke(main, ["simulate", "-", "--json"], input=plan.to_json())
    assert run.exit_code == 0, run.output
    data = json.loads(run.output)
    assert data["step_time_s"] == pytest.approx(plan.step_time_s)
    assert data["stages"][0]["peak_bytes"] == plan.peak_bytes
    assert CliRunner().invoke(main, ["simulate", "-"], input=plan.to_json()).exit_code == 0
    for option in (["--microbatches", "2"], ["--schedule", "gpipe"]):
        run = CliRunner().invoke(main, ["simulate", "-", *option], input=plan.to_json())
        assert run.exit_code == 1
        assert "the step runs as one program on one mesh" in run.output


def test_a_file_that_does_not_say_its_cluster_is_simulated_on_one_that_is_given() -> None:
    file = Path(__file__).parents[1] / "golden" / "plans" / "plan-version-3.json"
    run = CliRunner().invoke(main, ["simulate", str(file)])
    assert run.exit_code == 1
    assert "the plan does not say its cluster" in run.output
    run = CliRunner().invoke(main, ["simulate", str(file), "--cluster", "1x p3.8xlarge"])
    assert run.exit_code == 0, run.output
    page = CliRunner().invoke(main, ["explain", str(file)])
    assert "4 x virtual CPU" in page.output


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("{", "a plan must be JSON: "),
        ('{"format": "meshwise-plan", "version": 0}', "field 'version': this program reads"),
    ],
)
def test_what_is_no_plan(content: str | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    found = CliRunner().invoke(main, ["explain", str(path)])
    assert found.exit_code == 1
    assert found.output.startswith(f"Error: {path}: {reason}")


def test_warnings_name_options_and_files_keep_arguments(plan: mw.Plan, tmp_path: Path) -> None:
    warned = dataclasses.replace(plan, warnings=("slow; num_microbatches=1 has no loop",))
    page = tmp_path / "plan.html"
    text = CliRunner().invoke(main, ["explain", "-", "--html", str(page)], input=warned.to_json())
    assert "- slow; --microbatches 1 has no loop" in text.output
    assert '<p class="warn">slow; --microbatches 1 has no loop</p>' in page.read_text()
    data = CliRunner().invoke(main, ["explain", "-", "--json"], input=warned.to_json())
    assert json.loads(data.output)["warnings"] == list(warned.warnings)
