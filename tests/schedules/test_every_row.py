"""Every row of the registry answers the whole protocol, and its closed forms are its table's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from evaluation.alpacomm.clocks import TaskCosts, clock_times, num_clocks

from meshwise.errors import PlanError
from meshwise.schedules.registry import SCHEDULES, make_schedule, tables
from meshwise.schedules.schedule import BACKWARD, FORWARD
from meshwise.schedules.v_shaped import VShapedSchedule
from meshwise.schedules.verify import verify_schedule

SIZES = [(n, m) for n in (1, 2, 3, 4, 8) for m in (8, 16, 24)]


def row_table(row, n, m):
    return row.table(n * row.chunks, m, n)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_row_stands_under_its_name_and_its_table_under_its_own(name):
    row = SCHEDULES[name]
    assert row.choice == name
    table = row_table(row, 2, 4)
    verify_schedule(table)
    sizes = {"num_stages": 2 * row.chunks, "num_microbatches": 4, "num_meshes": 2}
    assert make_schedule(row.table_name, **sizes) == table
    assert table.name == row.table_name in tables()
    assert table.forward_only == row.forward_only
    assert row.splits_backward == (table.splits_backward or row.delays_weights)
    assert row.depends_on_num_stages == (row.in_flight(1, 2, 64) != row.in_flight(1, 4, 64))


@pytest.mark.parametrize("name", SCHEDULES)
def test_micro_batches_in_flight_are_those_of_the_table(name):
    row = SCHEDULES[name]
    for n, m in [*SIZES, (2, 3), (3, 4), (8, 1), (8, 15)]:
        if not row.allows(n, m):
            continue
        for mesh, tasks in enumerate(row_table(row, n, m).tasks):
            last = FORWARD if row.forward_only else BACKWARD
            now = most = 0
            for task in tasks:
                now += task.kind == FORWARD
                most = max(most, now)
                now -= task.kind == last
            assert row.in_flight(n - mesh, n, m) == most / row.chunks


@pytest.mark.parametrize("name", SCHEDULES)
def test_stages_lie_on_the_meshes_of_the_table(name):
    row = SCHEDULES[name]
    for n in (1, 2, 3, 8):
        assert row.mesh_of_stage(n * row.chunks, n) == row_table(row, n, 2 * n).mesh_of_stage


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_time_of_a_step_is_that_of_the_table(name):
    # Gradients of weights that are delayed only shorten the step, by as much as transfers take.
    row = SCHEDULES[name]
    for (n, m), forward in itertools.product(SIZES, (2.0, 4.0)):
        if not row.allows(n, m):
            continue
        table = row_table(row, n, m)
        weight = 2.0 if table.splits_backward else 0.0
        backward = 0.0 if row.forward_only else 6.0 - weight
        if isinstance(row, VShapedSchedule):
            # Their form is of equal passes.
            backward = weight = forward
        whole = np.array(forward + backward + weight)
        costs = TaskCosts(
            forward=forward / row.chunks,
            backward=backward / row.chunks,
            weight=weight / row.chunks,
        )
        shown = float(row.fill_s(whole))
        if row.name == "zero-bubble-h1":
            # Gradients of weights fill the rest; a search does not know how long they take.
            shown -= 2 * weight
        assert num_clocks(clock_times(table, costs)) == float(m * whole + (n - 1) * shown)


@pytest.mark.parametrize("name", SCHEDULES)
def test_sizes_that_a_row_does_not_allow_have_no_table(name):
    row = SCHEDULES[name]
    for n, m in itertools.product((2, 3, 4), range(2, 9)):
        if row.allows(n, m):
            verify_schedule(row_table(row, n, m))
        else:
            with pytest.raises(PlanError, match=f"schedule {row.name}"):
                row_table(row, n, m)
