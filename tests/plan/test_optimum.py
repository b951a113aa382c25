"""What a plan says of how good it is: what is proved, and of which plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from doubles.pipelines import pipeline
from meshwise.plan.text.optimum import optimum_text
from meshwise.units import seconds_text

PLAN = pipeline(2, 8)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"gap": 0.0}, "no plan of its space is predicted to be faster"),
        # What would be printed as 0.00% is no proof.
        ({"gap": 1e-6}, "no plan of its space is predicted to be more than 0.01% faster"),
        ({"gap": 0.02}, "no plan of its space is predicted to be more than 2.00% faster"),
        (
            {"gap": 0.02, "status": "time limit"},
            "stopped by the time limit; no plan of its space is predicted to be more than 2.00% "
            "faster",
        ),
        ({"gap": None}, "no bound known"),
        (
            {"gap": None, "status": "greedy"},
            "nothing was searched, the method fixes the plan; no bound known",
        ),
        (
            {"gap": 0.0, "objective": "alpa"},
            "no plan of its space has a cost that is lower",
        ),
    ],
)
def test_what_is_proved(changes: dict[str, object], text: str) -> None:
    assert optimum_text(replace(PLAN, **changes)) == text


def test_one_step_time_everywhere() -> None:
    step, formula = seconds_text(PLAN.step_time_s), seconds_text(PLAN.formula_s)
    assert step != formula
    assert f", {step} a step," in repr(PLAN)
    lines = PLAN.explain().splitlines()
    told = (
        f"step time {step} (predicted, by simulation); {formula} by the formula of the search, and "
        "the proof holds for that formula"
    )
    assert told in " ".join(" ".join(lines).split())
