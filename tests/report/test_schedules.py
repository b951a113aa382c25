"""The best plan of each schedule, as text and on the page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from click.testing import CliRunner

from doubles.golden_plans import golden_plan
from doubles.pipelines import pipeline
from meshwise.cli import main
from meshwise.report.html.page import plan_page
from meshwise.report.schedules import elsewhere_text, schedules_text
from meshwise.simulate.simulated_plan import SimulatedPlan, best_by_schedule

SLOW = SimulatedPlan(
    schedule="1f1b", num_stages=2, num_microbatches=8, step_time_s=2.0, formula_s=1.5
)
FAST = dataclasses.replace(SLOW, num_stages=4, step_time_s=1.0)
OTHER = dataclasses.replace(SLOW, schedule="zb-h1", step_time_s=0.5)


def test_the_fastest_of_each_schedule_stands_first() -> None:
    assert best_by_schedule([SLOW, FAST, OTHER]) == (OTHER, FAST)


def test_text_and_page_show_the_best_of_each() -> None:
    best = (OTHER, FAST)
    lines = schedules_text(best).splitlines()
    assert [line.split()[:4] for line in lines[4:6]] == [
        ["zb-h1", "2", "8", "500"],
        ["1f1b", "4", "8", "1"],
    ]
    page = plan_page(golden_plan("gpt-two-stages"), simulated=best)
    assert "<h2>Best plan by schedule</h2>" in page
    assert ">zb-h1<" in page


def test_a_plan_alone_says_where_the_table_is(tmp_path: Path) -> None:
    plan = pipeline(4, 16, "2x p3.16xlarge")
    assert plan.tried
    assert "`meshwise plan` prints the best plan of each schedule" in plan_page(plan)
    assert "other plans of the search. `meshwise plan`" not in plan_page(plan, simulated=())
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    told = CliRunner().invoke(main, ["explain", str(file)]).output
    assert "\nBest plan by schedule\n" in told
    assert "`meshwise plan` prints the best plan of each schedule" in " ".join(told.split())
    one_mesh = golden_plan("product-priced")
    assert "Best plan by schedule" not in plan_page(one_mesh)
    assert elsewhere_text(one_mesh) == ""


def test_one_schedule_needs_no_table() -> None:
    assert schedules_text((FAST,)) == ""
    assert "Best plan by schedule" not in plan_page(golden_plan("gpt-two-stages"), simulated=[FAST])
