"""Clocks, bubbles and what is in flight, against the closed forms of docs/facts.md section 5."""

from __future__ import annotations

import itertools

import pytest
from evaluation.alpacomm.clocks import TaskCosts, clock_times, num_clocks

from doubles.few import few
from doubles.in_flight import in_flight
from meshwise.schedules.registry import make_schedule, tables
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT
from meshwise.schedules.verify import verify_schedule

NUM_STAGES = few((2, 3, 4, 6, 8, 16, 32), (2, 3, 4, 8, 16))
NUM_MICROBATCHES = (1, 2, 3, 5, 8, 16, 31, 64)
EVERY_NUMBER = pytest.param(tuple(range(1, 129)), marks=pytest.mark.slow, id="every m")
SOME_OR_ALL = [pytest.param(NUM_MICROBATCHES, id="some m"), EVERY_NUMBER]
ONE_STAGE_A_MESH = ("gpipe", "1f1b", "eager-1f1b")


def clocks(schedule, **costs):
    return num_clocks(clock_times(schedule, TaskCosts(**costs)))


@pytest.mark.parametrize("counts", SOME_OR_ALL)
@pytest.mark.parametrize("n", NUM_STAGES)
@pytest.mark.parametrize("name", ONE_STAGE_A_MESH)
def test_clocks_and_micro_batches_in_flight(name, n, counts):
    for m in counts:
        schedule = make_schedule(name, num_stages=n, num_microbatches=m)
        verify_schedule(schedule)
        assert clocks(schedule) == 2 * (n + m - 1)
        most = {
            "gpipe": [m] * n,
            "1f1b": [min(n - i, m) for i in range(n)],
            "eager-1f1b": [min(2 * (n - i) - 1, m) for i in range(n)],
        }[name]
        assert list(in_flight(schedule)) == most


@pytest.mark.parametrize("name", ONE_STAGE_A_MESH)
def test_bubble_with_any_costs_of_forward_and_backward(name):
    for n, m, f, b in itertools.product((2, 3, 4, 8), (1, 3, 8, 16), (1, 2, 3), (1, 2, 3)):
        schedule = make_schedule(name, num_stages=n, num_microbatches=m)
        assert clocks(schedule, forward=f, backward=b) == (n + m - 1) * (f + b)


@pytest.mark.parametrize("n", NUM_STAGES)
def test_gradients_are_summed_in_the_same_order_under_every_schedule(n):
    for name, row in tables().items():
        stages = n * row.chunks
        schedule = make_schedule(name, num_stages=stages, num_microbatches=2 * n, num_meshes=n)
        last = WEIGHT if schedule.splits_backward else BACKWARD
        for stage, tasks in itertools.product(range(stages), schedule.tasks):
            order = [t.microbatch for t in tasks if (t.kind, t.stage) == (last, stage)]
            assert order == sorted(order)


@pytest.mark.parametrize("counts", [(1, 2, 5), EVERY_NUMBER])
@pytest.mark.parametrize("n", NUM_STAGES)
@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(n, v, counts):
    for m in sorted({n * min(k, 128 // n) for k in counts}):
        schedule = make_schedule(
            "interleaved-1f1b", num_stages=n * v, num_microbatches=m, num_meshes=n
        )
        # A chunk is 1 / v of a stage of plain 1F1B: bubble in chunks 2 (n - 1), as stages 2 (n - 1)
        # / v.
        assert clocks(schedule) == 2 * m * v + 2 * (n - 1)
        assert clocks(schedule, forward=1 / v, backward=1 / v) - 2 * m == pytest.approx(
            2 * (n - 1) / v
        )


@pytest.mark.parametrize("counts", [(1, 2, 4), EVERY_NUMBER])
@pytest.mark.parametrize("n", NUM_STAGES)
@pytest.mark.parametrize("v", [1, 2, 4])
def test_warm_up_of_interleaved_1f1b_bounds_what_is_in_flight(n, v, counts):
    for m in sorted({n * min(k, 128 // n) for k in counts}):
        schedule = make_schedule(
            "interleaved-1f1b", num_stages=n * v, num_microbatches=m, num_meshes=n
        )
        verify_schedule(schedule)
        for i, tasks in enumerate(schedule.tasks):
            expected = min(2 * (n - i - 1) + (v - 1) * n + 1, m * v)
            first_backward = next(k for k, task in enumerate(tasks) if task.kind == BACKWARD)
            assert first_backward == expected
            assert all(task.kind == FORWARD for task in tasks[:first_backward])
            steps = (1 if task.kind == FORWARD else -1 for task in tasks)
            assert max(itertools.accumulate(steps)) == expected


def test_one_chunk_of_interleaved_1f1b_runs_ahead_as_far_as_eager_1f1b():
    one = make_schedule("interleaved-1f1b", num_stages=4, num_microbatches=8)
    assert one.tasks == make_schedule("eager-1f1b", num_stages=4, num_microbatches=8).tasks


@pytest.mark.parametrize("counts", SOME_OR_ALL)
@pytest.mark.parametrize("n", NUM_STAGES)
def test_bubble_and_memory_of_zero_bubble_h1(n, counts):
    for m in (k for k in counts if k >= n):
        schedule = make_schedule("zero-bubble-h1", num_stages=n, num_microbatches=m)
        verify_schedule(schedule)
        for f, b, w in ((1, 1, 1), (2, 2, 1), (3, 2, 2), (2, 3, 1)):
            bubble = clocks(schedule, forward=f, backward=b, weight=w) - m * (f + b + w)
            assert bubble == (n - 1) * (f + b - w)
        plain = make_schedule("1f1b", num_stages=n, num_microbatches=m)
        assert in_flight(schedule) == in_flight(plain)
        assert max(in_flight(schedule, until=WEIGHT)) == max(in_flight(plain))


def test_bubble_of_zero_bubble_h1_where_weights_cost_most_or_micro_batches_are_few():
    # With 1F1B's memory stage 0 waits (n - 1) T_B for its first gradient, and the last stage
    # (n - 1) T_F for its first input: long W cannot fill these.
    for n, m, f, b, w in itertools.product((2, 3, 5), (1, 2, 4, 7), (1, 2, 3), (1, 2, 3), (1, 3)):
        schedule = make_schedule("zero-bubble-h1", num_stages=n, num_microbatches=m)
        bubble = clocks(schedule, forward=f, backward=b, weight=w) - m * (f + b + w)
        if m >= n:
            assert bubble == (n - 1) * max(f + b - w, f, b)
        else:
            assert bubble == (n - 1) * (f + b) - (m - 1) * min(f, b, w)


@pytest.mark.parametrize("v", [1, 2, 3])
def test_inference_takes_one_clock_a_chunk_after_the_first_input(v):
    for n, m in itertools.product((1, 2, 3, 4, 8), (1, 2, 8, 24)):
        schedule = make_schedule("inference", num_stages=n * v, num_microbatches=m, num_meshes=n)
        verify_schedule(schedule)
        if m % n == 0:
            assert clocks(schedule) == m * v + n - 1
        assert {task.kind for tasks in schedule.tasks for task in tasks} == {FORWARD}


def test_each_transfer_on_the_way_there_and_back_is_waited_for_once():
    # One micro-batch: n forwards, n backwards, and 2 (n - 1) transfers, nothing beside them.
    schedule = make_schedule("1f1b", num_stages=5, num_microbatches=1)
    assert clocks(schedule, forward=1, backward=2, transfer=0.5) == 5 * 3 + 2 * 4 * 0.5


def test_transfers_cost_nothing_between_stages_of_one_mesh():
    schedule = make_schedule("interleaved-1f1b", num_stages=3, num_microbatches=4, num_meshes=1)
    assert clocks(schedule, transfer=100.0) == 2 * 3 * 4
