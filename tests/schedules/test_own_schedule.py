"""A schedule is one object: a class and a row of the registry, and it is planned, read and run."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import jax
import pytest

import meshwise as mw
from doubles.layered_steps import assert_equal, host, unet_step
from meshwise.request.pipeline_pins import read_pins
from meshwise.schedules import registry
from meshwise.schedules.alternating import AlternatingSchedule
from meshwise.simulate.plan import Changes, simulate_plan
from oracle.problem import quick_jit


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMoreAhead(AlternatingSchedule):
    """1F1B with one more forward before the first backward."""

    name: ClassVar[str] = "one-more-ahead"

    def warm_up(self, to_end: int, num_microbatches: int) -> int:
        return to_end + 1


@pytest.fixture(autouse=True)
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = OneMoreAhead()
    rows = MappingProxyType({**registry.SCHEDULES, row.choice: row})
    monkeypatch.setattr(registry, "SCHEDULES", rows)


@pytest.mark.usefixtures("quick_steps", "x64")
def test_a_row_is_planned_read_simulated_explained_and_run() -> None:
    step, args = unet_step()
    method = mw.Auto(stages=2, schedule="one-more-ahead")
    parallel = mw.parallelize(step, method=method, num_microbatches=4)
    plan = parallel.plan(*args)
    assert plan.schedule == "one-more-ahead"
    assert [stage.in_flight for stage in plan.stages] == [3, 2]
    assert "one-more-ahead" in plan.explain()
    assert mw.Plan.from_json(plan.to_json()) == plan
    assert simulate_plan(plan).timeline.step_time_s == plan.step_time_s
    other = simulate_plan(plan, Changes(schedule=registry.choices()["gpipe"]))
    assert other.schedule == "gpipe"
    expected = [host(x) for x in jax.tree.leaves(quick_jit(step)(*args))]
    assert_equal([host(x) for x in jax.tree.leaves(parallel(*args))], expected)


def test_a_row_can_be_pinned_and_is_among_all() -> None:
    pins = read_pins({"schedule": "one-more-ahead"})
    assert [pin.schedule for pin in pins] == [OneMoreAhead()]
    assert OneMoreAhead() in registry.named(registry.ALL)
