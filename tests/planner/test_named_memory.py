"""Memory that a refusal names was planned with; an amount that does not do is not named."""

from __future__ import annotations

import pytest

import meshwise as mw
from doubles.perceptron import perceptron
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.search.unsearched_memory import NamedMemoryError, UnsearchedMemoryError
from meshwise.planner import schedule_choice


def refusal(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """What a user sees where a search ends so, and no memory that is tried is enough."""

    def ended(*_: object) -> None:
        raise error

    monkeypatch.setattr(schedule_choice, "_with_some_room", ended)
    monkeypatch.setattr(schedule_choice, "_with_more_memory", lambda *_: None)
    step, state, batch = perceptron((64,) * 3, 64)
    asked = mw.parallelize(
        step,
        method=mw.Auto(stages=2, schedule="1f1b"),
        cluster=mw.Cluster.virtual("1x p3.8xlarge"),
        num_microbatches=4,
    )
    with pytest.raises((InfeasibleError, PlanError)) as caught:
        asked.plan(state, batch)
    return caught.value


NAMED = NamedMemoryError("nothing fits", 5 * 2**20, "2 stages")


def test_memory_that_planning_refutes_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "memory_bytes=5242880" in str(NAMED)
    assert str(refusal(NAMED, monkeypatch)) == "nothing fits"


def test_what_else_an_error_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    error = PlanError(f"the pins 'stages=3' leave no plan: {NAMED}")
    error.__cause__ = NAMED
    found = refusal(error, monkeypatch)
    assert isinstance(found, PlanError)
    assert str(found) == "the pins 'stages=3' leave no plan: nothing fits"


def test_an_error_of_a_later_search_is_no_part_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = UnsearchedMemoryError("values wait there", 0.1)
    error.__cause__ = NAMED
    assert refusal(error, monkeypatch) is error
