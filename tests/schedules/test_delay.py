"""Backward weight delaying."""

from __future__ import annotations

import pytest
from evaluation.alpacomm.clocks import TaskCosts, clock_times, num_clocks
from evaluation.alpacomm.delayed_weights import delay_weights
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.in_flight import in_flight
from meshwise.errors import PlanError
from meshwise.schedules.delay import with_delays
from meshwise.schedules.registry import make_schedule
from meshwise.schedules.schedule import WEIGHT
from meshwise.schedules.verify import verify_schedule

PLAIN = make_schedule("1f1b", num_stages=2, num_microbatches=3)


def words(tasks):
    return " ".join(f"{task.kind}{task.microbatch}" for task in tasks)


@pytest.mark.parametrize(
    ("delay", "first", "last"),
    [
        (0, "F0 F1 B0 W0 F2 B1 W1 B2 W2", "F0 B0 W0 F1 B1 W1 F2 B2 W2"),
        (1, "F0 F1 B0 F2 W0 B1 W1 B2 W2", "F0 B0 F1 W0 B1 F2 W1 B2 W2"),
        (2, "F0 F1 B0 F2 B1 W0 B2 W1 W2", "F0 B0 F1 B1 W0 F2 B2 W1 W2"),
        (3, "F0 F1 B0 F2 B1 W0 B2 W1 W2", "F0 B0 F1 B1 F2 W0 B2 W1 W2"),
        (9, "F0 F1 B0 F2 B1 B2 W0 W1 W2", "F0 B0 F1 B1 F2 B2 W0 W1 W2"),
    ],
)
def test_a_delay_counts_half_steps(delay, first, last):
    split = with_delays(PLAIN, [delay, delay])
    assert words(split.tasks[0]) == first
    assert words(split.tasks[1]) == last
    verify_schedule(split)


def clocks(schedule, costs):
    return num_clocks(clock_times(schedule, costs))


@pytest.mark.parametrize(("n", "m"), [(2, 8), (4, 8), (8, 32)])
@pytest.mark.parametrize("transfer", [0.25, 0.5, 1.0])
def test_delays_cover_the_transfers_of_eager_1f1b_whole(n, m, transfer):
    eager = make_schedule("eager-1f1b", num_stages=n, num_microbatches=m)
    costs = TaskCosts(transfer=transfer)
    free = clocks(with_delays(eager, [0] * n), TaskCosts())
    assert clocks(with_delays(eager, [0] * n), costs) == free + 2 * (n - 1) * transfer
    delayed = delay_weights(eager, costs)
    verify_schedule(delayed)
    assert clocks(delayed, costs) <= free
    assert delayed.name == "eager-1f1b"


def test_without_transfers_nothing_is_delayed():
    eager = make_schedule("eager-1f1b", num_stages=4, num_microbatches=8)
    assert delay_weights(eager, TaskCosts()) == with_delays(eager, [0] * 4)


def test_longer_transfers_delay_more_and_hold_more():
    eager = make_schedule("eager-1f1b", num_stages=8, num_microbatches=32)
    held = [
        sum(in_flight(delay_weights(eager, TaskCosts(transfer=t)), until=WEIGHT))
        for t in (0.0, 0.25, 0.5, 1.0)
    ]
    assert held == sorted(set(held))


@settings(max_examples=60)
@given(
    name=st.sampled_from(["gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b"]),
    n=st.integers(1, 5),
    rounds=st.integers(1, 4),
    costs=st.tuples(*[st.sampled_from([0.5, 1.0, 2.0])] * 3, st.sampled_from([0.0, 0.3, 2.0])),
)
def test_delays_never_make_a_step_longer(name, n, rounds, costs):
    f, b, w, transfer = costs
    schedule = make_schedule(name, num_stages=n, num_microbatches=n * rounds)
    costs = TaskCosts(forward=f, backward=b, weight=w, transfer=transfer)
    delayed = delay_weights(schedule, costs)
    verify_schedule(delayed)
    assert clocks(delayed, costs) <= clocks(with_delays(schedule, [0] * n), costs) * (1 + 1e-9)
    whole = TaskCosts(forward=f, backward=b + w, transfer=transfer)
    assert clocks(delayed, costs) <= clocks(schedule, whole) * (1 + 1e-9)


def test_what_cannot_be_split_is_refused():
    split = make_schedule("zero-bubble-h1", num_stages=2, num_microbatches=2)
    for schedule in (split, make_schedule("inference", num_stages=2, num_microbatches=2)):
        with pytest.raises(PlanError, match="has no whole backward that could be split"):
            delay_weights(schedule, TaskCosts())
    with pytest.raises(
        PlanError, match=r"at least 0 is needed for each of 2 meshes, not \[1, -1\]"
    ):
        with_delays(PLAIN, [1, -1])
    with pytest.raises(PlanError, match=r"for each of 2 meshes, not \[1\]"):
        with_delays(PLAIN, [1])
