"""Gradients of weights that run apart, as text and in differences."""

from __future__ import annotations

from dataclasses import replace

from doubles.pipelines import pipeline
from meshwise.plan.counts.contents import OtherOperators
from meshwise.plan.plan import Plan
from meshwise.plan.stage import WeightGradients
from meshwise.plan.text.explain_costs import busy_s
from meshwise.report.plan_diff import plan_differences
from meshwise.units import GIB

PLAIN = pipeline(2, 8)


def apart() -> Plan:
    late = WeightGradients(seconds=0.008, held_bytes=GIB // 4, waiting=2)
    stages = tuple(replace(stage, weights=late) for stage in PLAIN.stages)
    return replace(PLAIN, schedule="eager-1f1b", stages=stages, delays=(0, 2))


def test_the_text_says_what_waits() -> None:
    assert "gradients of weights apart" not in PLAIN.explain()
    text = apart().explain()
    assert "each holds: bytes of a device that a micro-batch keeps" in text
    lines = text.splitlines()
    at = lines.index("gradients of weights apart")
    assert lines[at + 1].split("  ")[0].strip() == "stage"
    assert lines[at + 3].split() == ["0", "8", "ms", "0", "2", "256", "MiB"]
    assert lines[at + 4].split() == ["1", "8", "ms", "2", "2", "256", "MiB"]


def test_the_schedule_bears_the_name_by_which_it_is_asked_for() -> None:
    assert "micro-batches, schedule eager-1f1b-delayed" in apart().explain()
    assert "delayed" not in PLAIN.explain()


def test_nothing_else_has_no_row_of_seconds() -> None:
    others = OtherOperators(where="mul at a.py:1:1", count=1, seconds=busy_s(PLAIN))
    first, second = PLAIN.stages
    plan = replace(PLAIN, stages=(replace(first, others=(others,)), second), collectives=())
    assert "all else" not in plan.explain()
    less = replace(others, seconds=others.seconds / 2)
    plan = replace(plan, stages=(replace(first, others=(less,)), second))
    assert "all else" in plan.explain()


def test_what_an_older_file_does_not_say_is_no_difference() -> None:
    stages = tuple(replace(stage, gradient_bytes=8) for stage in PLAIN.stages)
    newer = replace(PLAIN, stages=stages)
    assert not plan_differences(PLAIN, newer)
    more = replace(newer, stages=tuple(replace(stage, gradient_bytes=9) for stage in stages))
    found = [row.what for section in plan_differences(newer, more) for row in section.rows]
    assert found == ["0 sums of gradients", "1 sums of gradients"]


def test_differences_name_it() -> None:
    found = {row.what for section in plan_differences(PLAIN, apart()) for row in section.rows}
    assert {
        "schedule",
        "delays of weights",
        "0 in flight until weights",
        "0 weights apart",
    } <= found
    assert {"0 peak"} <= found
