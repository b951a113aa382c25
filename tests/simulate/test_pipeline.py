"""Steps against closed forms, bounds and an independent computation."""

from __future__ import annotations

import ast
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from evaluation.alpacomm.clocks import TaskCosts, clock_times, num_clocks
from evaluation.alpacomm.delayed_weights import delay_weights
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwise.simulate as package
from meshwise.errors import ProgramError
from meshwise.schedules.delay import with_delays
from meshwise.schedules.registry import make_schedule, tables
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Task, dependencies
from meshwise.schedules.verify import running_order
from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.pipeline import PricedPipeline
from meshwise.simulate.stages import StageBoundary, StageCost
from meshwise.simulate.trace import chrome_trace

HOST = HostLinks(nic_bytes_per_s=10.0, link_bytes_per_s=40.0)


def equal_stages(count, f=1.0, b=1.0, w=1.0, **memory):
    return [
        StageCost(
            forward_s=f,
            backward_s=b,
            activation_gradient_s=b,
            weight_gradient_s=w,
            **memory,
        )
    ] * count


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b"])
@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
def test_equal_stages_without_transfers_take_the_clocks_of_facts(name, n):
    for m in (1, 4, 32):
        schedule = make_schedule(name, num_stages=n, num_microbatches=m)
        timeline = PricedPipeline(equal_stages(n), [], []).simulate(schedule)
        assert timeline.step_time_s == 2 * (n + m - 1)
        assert timeline.bubble_share == pytest.approx((n - 1) / (n + m - 1))
        assert timeline.exposed_s == (0.0,) * n


@pytest.mark.parametrize("v", [1, 2, 4])
def test_interleaved_stages_without_transfers_take_the_clocks_of_facts(v):
    for n, m in ((2, 4), (4, 8), (8, 32)):
        schedule = make_schedule(
            "interleaved-1f1b", num_stages=n * v, num_microbatches=m, num_meshes=n
        )
        timeline = PricedPipeline(equal_stages(n * v), [], []).simulate(schedule)
        assert timeline.step_time_s == 2 * m * v + 2 * (n - 1)


def test_zero_bubble_has_the_bubble_and_the_memory_of_facts():
    for n, m in ((2, 2), (4, 8), (8, 32)):
        zero = make_schedule("zero-bubble-h1", num_stages=n, num_microbatches=m)
        plain = make_schedule("1f1b", num_stages=n, num_microbatches=m)
        stages = equal_stages(n, 3.0, 2.0, 1.5, held_bytes=7)
        timeline = PricedPipeline(stages, [], []).simulate(zero)
        assert timeline.step_time_s == m * 6.5 + (n - 1) * 3.5
        assert max(timeline.peak_bytes) == n * 7
        assert max(timeline.peak_bytes) == max(
            PricedPipeline(stages, [], []).simulate(plain).peak_bytes
        )


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_a_v_has_the_bubble_and_the_memory_of_facts(name):
    for n, m in ((2, 4), (4, 8), (8, 32)):
        schedule = make_schedule(name, num_stages=2 * n, num_microbatches=m, num_meshes=n)
        timeline = PricedPipeline(equal_stages(2 * n, held_bytes=7), [], []).simulate(schedule)
        assert timeline.step_time_s == 6 * m + n - 1
        assert max(timeline.peak_bytes) == (2 * n + (name == "dualpipe-v")) * 7


def test_memory_is_that_of_the_micro_batches_in_flight():
    stages = equal_stages(4, held_bytes=10, resident_bytes=1000)
    for name, most in (("gpipe", [8] * 4), ("1f1b", [4, 3, 2, 1]), ("eager-1f1b", [7, 5, 3, 1])):
        schedule = make_schedule(name, num_stages=4, num_microbatches=8)
        timeline = PricedPipeline(stages, [], []).simulate(schedule)
        assert list(timeline.peak_bytes) == [1000 + 10 * count for count in most]


def test_without_a_backward_nothing_is_held_longer_than_its_forward():
    schedule = make_schedule("inference", num_stages=2, num_microbatches=4)
    timeline = PricedPipeline(equal_stages(2, held_bytes=10), [], []).simulate(schedule)
    assert timeline.peak_bytes == (10, 10)
    assert [steps[-1].num_bytes for steps in timeline.memory] == [0, 0]


def test_what_weights_need_alone_is_less_than_what_the_backward_needs():
    schedule = make_schedule("zero-bubble-h1", num_stages=2, num_microbatches=4)
    less = equal_stages(2, held_bytes=10, weight_held_bytes=2)
    # Stage 1 runs F0 B0 F1 B1 W0 ...: at F1 one whole micro-batch and what W0 needs.
    assert PricedPipeline(less, [], []).simulate(schedule).peak_bytes == (20, 12)


def chain(count, num_bytes, latency_s=0.0):
    def crossing(a, b):
        return (Flow(a, b, num_bytes, latency_s),)

    return [
        StageBoundary(
            source=i, destination=i + 1, forward=crossing(i, i + 1), backward=crossing(i + 1, i)
        )
        for i in range(count - 1)
    ]


@pytest.mark.parametrize("name", sorted(tables()))
def test_equal_transfers_that_meet_none_take_the_clocks_of_the_table(name):
    # Two engines that share no code: the table's clocks, and events.
    costs = TaskCosts(forward=1.0, backward=2.0, weight=0.5, transfer=0.25)
    for n, m in ((2, 4), (4, 8), (5, 10)):
        count = n * tables()[name].chunks
        schedule = make_schedule(name, num_stages=count, num_microbatches=m, num_meshes=n)
        mesh_of = schedule.mesh_of_stage
        pipeline = PricedPipeline(
            equal_stages(count, 1.0, 2.0, 0.5),
            [b for b in chain(count, 0.0, 0.25) if mesh_of[b.source] != mesh_of[b.destination]],
            [HOST] * count,
        )
        assert pipeline.step_time_s(schedule) == pytest.approx(
            num_clocks(clock_times(schedule, costs))
        )


def test_eager_1f1b_with_delays_hides_what_plain_1f1b_shows():
    n, m = 4, 16
    transfers, hosts = chain(n, 9.0), [HOST] * n
    stages = equal_stages(n, 1.0, 2.0, 1.0)
    plain = make_schedule("1f1b", num_stages=n, num_microbatches=m)
    eager = make_schedule("eager-1f1b", num_stages=n, num_microbatches=m)
    parts = [
        StageCost(forward_s=1.0, activation_gradient_s=1.0, weight_gradient_s=1.0, backward_s=2.0)
    ] * n
    stop = PricedPipeline(stages, transfers, hosts, False).simulate(plain)
    run = PricedPipeline(stages, transfers, hosts).simulate(plain)
    ahead = PricedPipeline(stages, transfers, hosts).simulate(eager)
    delayed = delay_weights(eager, TaskCosts(transfer=0.9))
    best = PricedPipeline(parts, transfers, hosts).simulate(delayed)
    steps = [t.step_time_s for t in (stop, run, ahead, best)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 1.3 * steps[3]
    exposed = [sum(t.exposed_s) for t in (stop, run, ahead)]
    assert exposed == sorted(exposed, reverse=True)


@st.composite
def problems(draw):
    name = draw(st.sampled_from(sorted(tables())))
    n = draw(st.integers(1, 4))
    v = tables()[name].chunks
    if name in ("interleaved-1f1b", "inference"):
        v = draw(st.integers(1, 3))
    m = n * v * draw(st.integers(1, 2))
    schedule = make_schedule(name, num_stages=n * v, num_microbatches=m, num_meshes=n)
    if draw(st.booleans()) and not schedule.forward_only and not schedule.splits_backward:
        schedule = with_delays(schedule, [draw(st.integers(0, 4)) for _ in range(n)])
    seconds = st.floats(0.0, 4.0)
    stages = [
        StageCost(
            forward_s=draw(seconds),
            backward_s=draw(seconds),
            activation_gradient_s=draw(seconds),
            weight_gradient_s=draw(seconds),
            apply_s=draw(seconds),
            resident_bytes=draw(st.integers(0, 1000)),
            held_bytes=draw(st.integers(0, 100)),
            weight_held_bytes=draw(st.one_of(st.none(), st.integers(0, 50))),
            temporary_bytes=draw(st.integers(0, 20)),
        )
        for _ in range(n * v)
    ]
    hosts = n + draw(st.integers(0, 1))

    def crossing():
        host = st.integers(0, hosts - 1)
        flow = st.tuples(host, host, st.floats(0.0, 20.0), st.sampled_from([0.0, 0.125]))
        return tuple(Flow(*f) for f in draw(st.lists(flow, max_size=3)))

    pairs = st.tuples(st.integers(0, n * v - 1), st.integers(0, n * v - 1))
    boundaries = [
        StageBoundary(
            source=min(pair), destination=max(pair), forward=crossing(), backward=crossing()
        )
        for pair in draw(st.lists(pairs, max_size=4))
        if pair[0] != pair[1]
    ]
    return schedule, stages, boundaries, [HOST] * hosts, draw(st.booleans())


def seconds_of(task, stage, schedule):
    if task.kind == FORWARD:
        return stage.forward_s
    if task.kind == WEIGHT:
        return stage.weight_gradient_s
    return stage.activation_gradient_s if schedule.splits_backward else stage.backward_s


def critical_path_s(schedule, stages, boundaries):
    """Longest path over tasks in order on their mesh and over transfers that meet no other."""
    alone = {}
    for b in boundaries:
        for kind, crossing, pair in (
            (FORWARD, b.forward, (b.source, b.destination)),
            (BACKWARD, b.backward, (b.destination, b.source)),
        ):
            least = max(
                (
                    f.latency_s
                    + f.num_bytes
                    / (HOST.link_bytes_per_s if f.source == f.destination else HOST.nic_bytes_per_s)
                    for f in crossing
                ),
                default=0.0,
            )
            alone[kind, pair] = max(alone.get((kind, pair), 0.0), least)
    end, free = {}, [0.0] * schedule.num_meshes
    for mesh, position in running_order(schedule):
        task = schedule.tasks[mesh][position]
        start = free[mesh]
        for other in dependencies(task, schedule):
            start = max(start, end[other])
        for (kind, (source, destination)), seconds in alone.items():
            if kind == task.kind and destination == task.stage:
                start = max(start, end[Task(kind, source, task.microbatch)] + seconds)
        end[task] = free[mesh] = start + seconds_of(task, stages[task.stage], schedule)
    for stage, mesh in enumerate(schedule.mesh_of_stage):
        if not schedule.forward_only:
            free[mesh] += stages[stage].apply_s
    return max(free)


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_no_step_is_shorter_than_its_work_or_its_critical_path(problem):
    schedule, stages, boundaries, hosts, overlap = problem
    pipeline = PricedPipeline(stages, boundaries, hosts, overlap)
    timeline = pipeline.simulate(schedule)
    assert pipeline.step_time_s(schedule) == timeline.step_time_s
    rounding = 1 + 1e-9
    assert timeline.step_time_s * rounding >= max(timeline.busy_s)
    assert timeline.step_time_s * rounding >= critical_path_s(schedule, stages, boundaries)
    assert -1e-9 <= timeline.bubble_share <= 1
    for mesh, busy in enumerate(timeline.busy_s):
        mine = [e for e in timeline.events if e.mesh == mesh]
        assert sum(e.end_s - e.start_s for e in mine) == pytest.approx(busy, abs=1e-9)
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(mine))
        assert 0 <= timeline.exposed_s[mesh] <= timeline.step_time_s * rounding - busy + 1e-9


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_memory_starts_and_ends_with_what_is_resident(problem):
    schedule, stages, boundaries, hosts, overlap = problem
    timeline = PricedPipeline(stages, boundaries, hosts, overlap).simulate(schedule)
    for mesh, steps in enumerate(timeline.memory):
        on_mesh = [s for s, at in enumerate(schedule.mesh_of_stage) if at == mesh]
        resident = sum(stages[stage].resident_bytes for stage in on_mesh)
        assert steps[0] == (0.0, resident)
        assert steps[-1].num_bytes == resident
        assert min(step.num_bytes for step in steps) >= resident
        assert timeline.peak_bytes[mesh] == max(step.num_bytes for step in steps)
        times = [step.time_s for step in steps]
        assert times == sorted(times)


@settings(max_examples=50, deadline=None)
@given(problem=problems())
def test_transfers_stand_between_their_maker_and_their_taker(problem):
    schedule, stages, boundaries, hosts, overlap = problem
    timeline = PricedPipeline(stages, boundaries, hosts, overlap).simulate(schedule)
    at = {(e.kind, e.stage, e.microbatch): e for e in timeline.events}
    for t in timeline.transfers:
        kind = FORWARD if t.source_stage < t.destination_stage else BACKWARD
        maker = at[kind, t.source_stage, t.microbatch]
        assert maker.end_s <= t.start_s
        if overlap:
            assert maker.end_s == t.start_s
        assert t.end_s <= at[kind, t.destination_stage, t.microbatch].start_s
        if not overlap and t.end_s > t.start_s:
            for e in timeline.events:
                if e.mesh in (t.source_mesh, t.destination_mesh) and e.end_s > e.start_s:
                    assert e.end_s <= t.start_s or e.start_s >= t.end_s


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_equal_input_gives_an_equal_trace_byte_for_byte(problem):
    schedule, *args = problem
    first, second = (chrome_trace(PricedPipeline(*args).simulate(schedule)) for _ in range(2))
    assert first == second


def test_several_boundaries_may_join_the_same_stages():
    schedule = make_schedule("inference", num_stages=2, num_microbatches=1)
    twice = [StageBoundary(source=0, destination=1, forward=(Flow(0, 1, 10.0),)) for _ in range(2)]
    timeline = PricedPipeline(equal_stages(2), twice, [HOST] * 2).simulate(schedule)
    assert [t.end_s for t in timeline.transfers] == [3.0, 3.0]
    assert timeline.step_time_s == 4.0


@pytest.mark.parametrize(
    ("name", "stages", "boundaries", "message"),
    [
        ("1f1b", [StageCost(forward_s=1.0)], [], "costs of 1 stage for schedule 1f1b of 2"),
        (
            "zero-bubble-h1",
            [StageCost(forward_s=1.0, backward_s=2.0)] * 2,
            [],
            "splits the backward, but stage 0 has no activation_gradient_s",
        ),
        (
            "1f1b",
            [StageCost(forward_s=1.0)] * 2,
            [StageBoundary(source=1, destination=0)],
            "a boundary joins stages 1 and 0; it must join a lower to a higher of 2",
        ),
        (
            "1f1b",
            [StageCost(forward_s=1.0)] * 2,
            [StageBoundary(source=1, destination=2)],
            "a boundary joins stages 1 and 2",
        ),
        (
            "1f1b",
            [StageCost(forward_s=1.0)] * 2,
            [StageBoundary(source=0, destination=1, backward=(Flow(1, 2, 8.0),))],
            "the boundary of stages 0 and 1 has a flow from host 1 to host 2; there are 2",
        ),
        (
            "1f1b",
            [StageCost(forward_s=math.nan)] * 2,
            [],
            "stage 0: forward_s is nan s",
        ),
    ],
)
def test_costs_that_do_not_fit_the_schedule_are_refused(name, stages, boundaries, message):
    schedule = make_schedule(name, num_stages=2, num_microbatches=2)
    with pytest.raises(ProgramError, match=message):
        PricedPipeline(stages, boundaries, [HOST] * 2).simulate(schedule)


def test_the_simulator_imports_nothing_of_the_planner():
    folder = Path(package.__path__[0])
    ours = {
        alias
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (alias := node.module or "").startswith("meshwise")
    }
    assert ours
    rooms = {name.split(".")[1] for name in ours}
    # A finished plan is numbers; what found it is in other rooms.
    assert rooms <= {
        "errors",
        "units",
        "kernels",
        "cluster",
        "plan",
        "resharding",
        "schedules",
        "simulate",
    }


def test_an_order_with_a_deadlock_is_told():
    schedule = make_schedule("1f1b", num_stages=2, num_microbatches=2)
    (first, second), tasks = schedule.tasks, [Task(FORWARD, 0, 1), Task(FORWARD, 0, 0)]
    turned = (Task(BACKWARD, 0, 0), *tasks, Task(BACKWARD, 0, 1))
    assert sorted(turned) == sorted(first)
    with pytest.raises(ProgramError) as caught:
        PricedPipeline(equal_stages(2), [], []).simulate(replace(schedule, tasks=(turned, second)))
    assert str(caught.value) == (
        "deadlock: on mesh 0 B of stage 0, micro-batch 0 waits for the result of B of stage 1, "
        "micro-batch 0, which comes later on mesh 1; on mesh 1 F of stage 1, micro-batch 0 waits "
        "for the result of F of stage 0, micro-batch 0, which comes later on mesh 0"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda tasks: tasks[1:],
        lambda tasks: (*tasks, tasks[0]),
        lambda tasks: (*tasks, Task(WEIGHT, 0, 0)),
        lambda tasks: (*tasks[1:], Task(FORWARD, 1, 0)),
        lambda tasks: (*tasks[1:], Task(FORWARD, 0, 99)),
        lambda tasks: (*tasks[1:], Task(FORWARD, 0, -1)),
    ],
)
def test_a_table_that_is_no_schedule_is_refused(change):
    schedule = make_schedule("1f1b", num_stages=2, num_microbatches=2)
    first, second = schedule.tasks
    with pytest.raises(ProgramError, match="^schedule 1f1b"):
        PricedPipeline(equal_stages(2), [], []).simulate(
            replace(schedule, tasks=(change(first), second))
        )
