"""Memory that a refusal names was planned with; an amount that does not do is not named."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import meshwise as mw
from doubles.perceptron import perceptron
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.search.unsearched_memory import NamedMemoryError, UnsearchedMemoryError
from meshwise.planner import room
from meshwise.planner.pinned_search import PipelineSearch


def refusal(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """What a user sees where a search ends so, and no memory that is tried is enough."""

    def ended(*_: object) -> None:
        raise error

    monkeypatch.setattr(room, "_with_some_room", ended)
    monkeypatch.setattr(room, "_with_more_memory", lambda *_: None)
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
    error = UnsearchedMemoryError("values wait there", 0.1, 1.0, 0.0)
    error.__cause__ = NAMED
    assert refusal(error, monkeypatch) is error


@pytest.mark.parametrize(("least_s", "num_searches"), [(1.01, 2), (1.03, 1)])
def test_less_memory_is_searched_only_if_the_step_could_be_the_fastest(
    least_s: float, num_searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def without_room(asked: PipelineSearch) -> None:
        shares.append(asked.options.reserved_share)
        if len(shares) == 1:
            raise UnsearchedMemoryError("no room", 0.1, least_s, 0.0)

    monkeypatch.setattr(room, "planned_together", without_room)
    unused: Any = None
    asked = PipelineSearch(
        layers=unused,
        cluster=mw.Cluster.virtual("1x p3.8xlarge"),
        options=SearchOptions(batch_size=8, step_flop=1.0),
        report=lambda _: None,
        pins=(),
        plans=unused,
        cutoff_s=1.0,
    )
    assert room._with_some_room(asked) is None
    assert len(shares) == num_searches
    assert math.isclose(max(shares), 0.1 * (num_searches - 1))


@example(
    spare=[0.162, 0.247, 0.252],
    has_room=[False, False, True, False, False, False],
    missing=0.05,
)
@given(
    spare=st.lists(st.floats(0.0, 0.6), min_size=1, max_size=6),
    has_room=st.lists(st.booleans(), min_size=6, max_size=6),
    missing=st.floats(0.001, 0.3),
)
def test_no_stages_without_room_are_found_twice(
    spare: list[float], has_room: list[bool], missing: float
) -> None:
    found: list[int] = []

    def planned(options: SearchOptions) -> int:
        # The first stages that fit, as the search counts them.
        fit = [n for n, share in enumerate(spare) if share >= options.reserved_share]
        if not fit:
            raise InfeasibleError("nothing fits")
        found.append(fit[0])
        if not has_room[fit[0]]:
            raise UnsearchedMemoryError("no room", missing, 1.0, spare[fit[0]])
        return fit[0]

    try:
        chosen = room.with_memory_free(
            SearchOptions(batch_size=8, step_flop=1.0), planned, lambda _: None
        )
    except UnsearchedMemoryError:
        assert not any(has_room[n] for n in found)
    else:
        assert has_room[chosen]
    assert len(found) == len(set(found))


def test_stages_just_above_those_that_are_refused_are_found() -> None:
    def planned(options: SearchOptions) -> int:
        share = options.reserved_share
        # What stages leave free as the search counts them, and what they lack.
        for number, (spare, missing) in enumerate(((0.162, 0.055), (0.247, 0.046), (0.252, 0.0))):
            if share <= spare:
                if missing:
                    raise UnsearchedMemoryError("no room", missing, 1.0, spare)
                return number
        raise InfeasibleError("nothing fits")

    options = SearchOptions(batch_size=8, step_flop=1.0)
    assert room.with_memory_free(options, planned, lambda _: None) == 2
