"""Where the seconds of a step go: all of them, each once."""

from __future__ import annotations

import math

import pytest

from doubles.golden_plans import golden_plan
from doubles.pipelines import pipeline
from meshwise.plan.counts.collectives import collective_s
from meshwise.plan.record import ONE_PROGRAM
from meshwise.report.html.page import plan_page
from meshwise.report.html.seconds import mesh_seconds
from meshwise.simulate.plan import simulate_plan

PLANS = {
    "one mesh": lambda: golden_plan("product-by-data"),
    "two stages": lambda: golden_plan("gpt-two-stages"),
    "50 stages": lambda: pipeline(50, 64, "50x p3.16xlarge"),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_second_of_every_mesh_is_said_once(name: str) -> None:
    plan = PLANS[name]()
    simulation = None if plan.cluster is None else simulate_plan(plan)
    whole_s = plan.step_time_s
    if simulation is not None and plan.schedule != ONE_PROGRAM:
        whole_s = simulation.timeline.step_time_s
    found = mesh_seconds(plan, simulation)
    assert len(found) == plan.num_meshes
    for mesh in found:
        assert math.fsum(mesh.parts().values()) == pytest.approx(whole_s, rel=1e-6)
    sent_s = math.fsum(
        item.count * collective_s(item, plan.stages[item.stage].mesh) for item in plan.collectives
    )
    said_s = math.fsum(s for mesh in found for _, _, s in mesh.collectives.values())
    assert said_s == pytest.approx(sent_s, rel=1e-9)
    page = plan_page(plan)
    assert "Where the seconds go" in page
    assert "mw.Replay(plan)" in page
    for mesh in found[:1]:
        for kind, axes in mesh.collectives:
            assert f"{kind} over {' '.join(axes)}" in page


def test_little_of_one_mesh_is_not_told_by_its_source_line() -> None:
    plan = golden_plan("product-priced")
    (stage,) = plan.stages
    told_s = math.fsum(
        (
            *(max(item.compute_s, item.memory_s) for item in stage.dense),
            *(item.seconds for item in stage.others),
            *(item.count * collective_s(item, stage.mesh) for item in plan.collectives),
        )
    )
    assert stage.others
    assert told_s == pytest.approx(plan.step_time_s, rel=0.02)
    rows = plan.explain().partition("Seconds of a step")[2].partition("\n\n")[0].splitlines()
    assert rows[-1].startswith("all else ")
    (mesh,) = mesh_seconds(plan, None)
    assert 0 < mesh.dense_s < mesh.computes_s
    page = plan_page(plan)
    assert "dense products and convolutions" in page
    assert "Their source lines stand in the text below" in page
