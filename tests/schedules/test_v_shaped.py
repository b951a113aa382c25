"""ZB-V and DualPipeV against the closed forms of docs/facts.md section 5."""

from __future__ import annotations

import itertools

import pytest
from evaluation.alpacomm.clocks import TaskCosts, clock_times, num_clocks

from meshwise.errors import PlanError
from meshwise.schedules.registry import make_schedule
from meshwise.schedules.schedule import Schedule, Task, dependencies
from meshwise.schedules.verify import verify_schedule

NUM_MESHES = (2, 4, 8, 16)
SOME_OR_ALL = [
    pytest.param(lambda n: (2 * n, 2 * n + 1, 3 * n, 64, 128), id="some m"),
    pytest.param(lambda n: range(2 * n, 129), marks=pytest.mark.slow, id="every m"),
]
# Forward, gradient of activations, gradients of weights: of one of the two stages of a mesh.
PASSES = ((1, 1, 1), (2, 3, 2), (3, 4, 3), (1, 2, 2), (3, 5, 4))


def table(name: str, n: int, m: int) -> Schedule:
    return make_schedule(name, num_stages=2 * n, num_microbatches=m, num_meshes=n)


def idle(schedule: Schedule, f: float, b: float, w: float) -> float:
    """Clocks of a step in which a mesh does nothing."""
    costs = TaskCosts(forward=f, backward=b, weight=w)
    return num_clocks(clock_times(schedule, costs)) - 2 * schedule.num_microbatches * (f + b + w)


@pytest.mark.parametrize("counts", SOME_OR_ALL)
@pytest.mark.parametrize("n", NUM_MESHES)
def test_no_mesh_of_zb_v_waits_from_its_first_task_to_its_last(n, counts):
    for m in (2 * n - 1, *counts(n)):
        schedule = table("zb-v", n, m)
        verify_schedule(schedule)
        for mesh, spans in enumerate(clock_times(schedule)):
            assert spans[0].start == mesh
            assert spans[-1].end - spans[0].start == 6 * m
        assert idle(schedule, 1, 1, 1) == n - 1


@pytest.mark.parametrize("n", NUM_MESHES)
def test_bubble_of_zb_v_with_other_passes(n):
    for m in (2 * n - 1, 2 * n, 64):
        schedule = table("zb-v", n, m)
        for f, b, w in itertools.product(range(1, 5), repeat=3):
            if max(f, w) <= b:
                assert idle(schedule, f, b, w) == (n - 1) * max(b, 2 * (b - w))


@pytest.mark.parametrize("counts", SOME_OR_ALL)
@pytest.mark.parametrize("n", NUM_MESHES)
def test_bubble_of_dualpipe_v_as_published(n, counts):
    """F&B is a forward and a whole backward beside each other, here no faster than in turn."""
    for m in counts(n):
        schedule = table("dualpipe-v", n, m)
        verify_schedule(schedule)
        assert idle(schedule, 1, 1, 1) == n - 1
        for f, b, w in PASSES:
            published = (n - 1) * ((f + b + w) + (b + w) - 3 * w)
            in_pairs = joined_clocks(schedule, {"F": f, "B": b, "W": w}) - 2 * m * (f + b + w)
            alone = idle(schedule, f, b, w)
            assert alone <= in_pairs <= published
            assert in_pairs == published or (f, b, w) != (1, 1, 1)


@pytest.mark.parametrize(("name", "chunks"), [("zb-v", 0), ("dualpipe-v", 1)])
def test_a_mesh_holds_what_1f1b_holds_until_weights_are_done(name, chunks):
    for n, m in itertools.product(NUM_MESHES, (64, 128)):
        for tasks in table(name, n, m).tasks:
            held = itertools.accumulate({"F": 1, "B": 0, "W": -1}[task.kind] for task in tasks)
            assert max(held) == 2 * n + chunks


@pytest.mark.parametrize(("name", "least"), [("zb-v", 7), ("dualpipe-v", 8)])
def test_too_few_micro_batches_are_refused_with_how_many_it_takes(name, least):
    verify_schedule(table(name, 4, least))
    with pytest.raises(PlanError, match=f"{name}: 6 micro-batches on 4 meshes; at least {least}"):
        table(name, 4, 6)


def joined_clocks(schedule: Schedule, clocks: dict[str, int]) -> float:
    """Clocks where a forward and the whole backward of the other stage after it are one task."""
    units = [list(_pairs(tasks)) for tasks in schedule.tasks]
    end: dict[Task, float] = {}
    free = [0.0] * len(units)
    waiting = [iter(mesh) for mesh in units]
    now = [next(mesh, None) for mesh in waiting]
    while any(now):
        for mesh, unit in enumerate(now):
            if unit is None:
                continue
            needs = {d for task in unit for d in dependencies(task, schedule)}.difference(unit)
            if needs <= end.keys():
                start = max([free[mesh], *(end[task] for task in needs)])
                free[mesh] = start + sum(clocks[task.kind] for task in unit)
                end |= dict.fromkeys(unit, free[mesh])
                now[mesh] = next(waiting[mesh], None)
    return max(free)


def _pairs(tasks):
    at = 0
    while at < len(tasks):
        one, *others = tasks[at : at + 3]
        is_pair = (
            [one.kind, *(task.kind for task in others)] == ["F", "B", "W"]
            and others[0][1:] == others[1][1:]
            and others[0].stage != one.stage
        )
        yield (one, *others) if is_pair else (one,)
        at += 3 if is_pair else 1
