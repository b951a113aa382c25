"""Gradients of weights delayed as little as covers transfers, all stages being equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evaluation.alpacomm.clocks import TaskCosts, num_clocks, times_in_order
from meshwise.schedules.delay import spread_delays, with_delays
from meshwise.schedules.schedule import Schedule
from meshwise.schedules.verify import TaskPlace, running_order

# Differences of clocks below this share are rounding.
_SAME = 1e-9


def delay_weights(schedule: Schedule, costs: TaskCosts) -> Schedule:
    """Split the backward and delay gradients of weights as little as covers the transfers.

    A backward goes down the pipeline from the last mesh, so what a mesh delays grows with the
    meshes before it, as in zero-bubble H1: mesh i delays `k i / (n - 1)` half steps.  The result
    has the least even k with which the step takes no longer than without transfers and delays; if
    none does, the least with which the step is shortest.  Less is better: what waits for its `W`
    is memory.

    Args:
        schedule: A schedule that does not split the backward.
        costs: Clocks for each kind of task and for a transfer between meshes.

    Raises:
        PlanError: There is no whole backward to split.
        ProgramError: The order has a deadlock.

    Source: docs/facts.md section 3.
    """
    order = running_order(schedule)
    steps = max(schedule.num_meshes - 1, 1)

    def delayed(k: int) -> Schedule:
        return with_delays(schedule, spread_delays(k, schedule.num_meshes))

    def clocks(split: Schedule, costs: TaskCosts) -> float:
        return num_clocks(times_in_order(split, _split_order(split, schedule, order), costs))

    best = delayed(0)
    enough = clocks(best, replace(costs, transfer=0.0)) * (1 + _SAME)
    least = clocks(best, costs)
    for k in range(2, 4 * steps + 1, 2):
        if least <= enough:
            break
        split = delayed(k)
        now = clocks(split, costs)
        if now < least * (1 - _SAME):
            best, least = split, now
    return best


def _split_order(
    split: Schedule, whole: Schedule, order: Sequence[TaskPlace]
) -> tuple[TaskPlace, ...]:
    """An order for the split schedule: that of the whole one, each `W` when its mesh gets there."""
    next_of = [0] * split.num_meshes
    places: list[TaskPlace] = []
    for mesh, position in order:
        task = whole.tasks[mesh][position]
        tasks = split.tasks[mesh]
        while tasks[next_of[mesh]] != task:
            places.append((mesh, next_of[mesh]))
            next_of[mesh] += 1
        places.append((mesh, next_of[mesh]))
        next_of[mesh] += 1
    for mesh, tasks in enumerate(split.tasks):
        places += [(mesh, position) for position in range(next_of[mesh], len(tasks))]
    return tuple(places)
