"""What is no schedule is refused, and the task named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import ProgramError
from meshwise.schedules.delay import with_delays
from meshwise.schedules.registry import make_schedule, tables
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Schedule, Task, dependencies
from meshwise.schedules.verify import running_order, verify_schedule

PLAIN = make_schedule("1f1b", num_stages=2, num_microbatches=2)


def with_tasks(schedule, mesh, tasks):
    tables = list(schedule.tasks)
    tables[mesh] = tuple(tasks)
    return replace(schedule, tasks=tuple(tables))


def test_a_users_own_table_is_a_schedule():
    own = Schedule(
        name="mine",
        num_stages=2,
        num_microbatches=1,
        num_meshes=1,
        tasks=((Task("F", 0, 0), Task("F", 1, 0), Task("B", 1, 0), Task("B", 0, 0)),),
        splits_backward=False,
        mesh_of_stage=(0, 0),
    )
    verify_schedule(own)
    assert running_order(own) == ((0, 0), (0, 1), (0, 2), (0, 3))


def test_a_missing_task_is_named():
    with pytest.raises(ProgramError, match="1f1b never runs B of stage 1, micro-batch 1$"):
        verify_schedule(with_tasks(PLAIN, 1, PLAIN.tasks[1][:-1]))
    with pytest.raises(ProgramError, match="never runs F of stage 1, micro-batch 0 nor 3 others"):
        verify_schedule(with_tasks(PLAIN, 1, ()))


def test_a_doubled_task_is_named():
    with pytest.raises(ProgramError, match="runs F of stage 0, micro-batch 1 twice, on mesh 0"):
        verify_schedule(with_tasks(PLAIN, 0, (*PLAIN.tasks[0], Task("F", 0, 1))))


@pytest.mark.parametrize("task", [Task("W", 0, 0), Task("F", 2, 0), Task("B", 0, 2)])
def test_a_task_that_does_not_exist_is_named(task):
    with pytest.raises(ProgramError, match=f"runs {task} on mesh 0, which is no task of 2 stages"):
        verify_schedule(with_tasks(PLAIN, 0, (*PLAIN.tasks[0], task)))


def test_a_task_on_the_wrong_mesh_is_named():
    moved = replace(PLAIN, tasks=(PLAIN.tasks[1], PLAIN.tasks[0]))
    with pytest.raises(ProgramError, match="F of stage 1, micro-batch 0 on mesh 0, but stage 1 is"):
        verify_schedule(moved)


def test_an_order_on_one_mesh_against_the_dependencies_is_named():
    tasks = [Task("B", 1, 0), Task("F", 1, 0), Task("F", 1, 1), Task("B", 1, 1)]
    message = "on mesh 1 B of stage 1, micro-batch 0 waits for F of stage 1, micro-batch 0 later"
    with pytest.raises(ProgramError, match=message):
        verify_schedule(with_tasks(PLAIN, 1, tasks))


def test_a_deadlock_between_meshes_is_named():
    # Mesh 0 wants a gradient of micro-batch 1 first, mesh 1 the activations of micro-batch 1 last.
    first = [Task("F", 0, 0), Task("B", 0, 0), Task("F", 0, 1), Task("B", 0, 1)]
    second = [Task("F", 1, 0), Task("F", 1, 1), Task("B", 1, 0), Task("B", 1, 1)]
    with pytest.raises(ProgramError) as caught:
        verify_schedule(replace(PLAIN, tasks=(tuple(first), tuple(second))))
    assert str(caught.value) == (
        "schedule 1f1b cannot run: on mesh 0 B of stage 0, micro-batch 0 waits for B of stage 1, "
        "micro-batch 0 on mesh 1; on mesh 1 F of stage 1, micro-batch 1 waits for F of stage 0, "
        "micro-batch 1 on mesh 0"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_meshes": 3}, "lists for 2 meshes, not for 3"),
        ({"mesh_of_stage": (0,)}, "names the meshes of 1 stage, not of 2"),
        ({"mesh_of_stage": (0, 2)}, "puts stage 1 on mesh 2; meshes are 0 to 1"),
        ({"forward_only": True, "splits_backward": True}, "no backward, so it cannot split it"),
    ],
)
def test_wrong_sizes_are_named(change, message):
    with pytest.raises(ProgramError, match=message):
        verify_schedule(replace(PLAIN, **change))


@given(
    name=st.sampled_from(sorted(tables())),
    n=st.integers(1, 4),
    rounds=st.integers(1, 3),
    data=st.data(),
)
def test_a_swap_passes_only_if_every_task_still_follows_what_it_needs(name, n, rounds, data):
    """Against a check of another kind: cycles in the graph of what each task needs."""
    stages = n * tables()[name].chunks
    schedule = make_schedule(name, num_stages=stages, num_microbatches=2 * n * rounds, num_meshes=n)
    mesh = data.draw(st.integers(0, n - 1))
    tasks = list(schedule.tasks[mesh])
    i, j = (data.draw(st.integers(0, len(tasks) - 1)) for _ in range(2))
    tasks[i], tasks[j] = tasks[j], tasks[i]
    swapped = with_tasks(schedule, mesh, tasks)
    if has_cycle(swapped):
        with pytest.raises(ProgramError, match="cannot run: on mesh"):
            verify_schedule(swapped)
    else:
        verify_schedule(swapped)


def has_cycle(schedule):
    """Depth-first search over what each task needs, the task before it on its mesh included."""
    needs = {}
    for tasks in schedule.tasks:
        for before, task in zip((None, *tasks), tasks, strict=False):
            needs[task] = [*dependencies(task, schedule), *([before] if before else [])]
    state = {}

    def visit(task):
        if state.get(task) == "open":
            return True
        if task in state:
            return False
        state[task] = "open"
        found = any(visit(other) for other in needs[task])
        state[task] = "done"
        return found

    return any(visit(task) for task in needs)


def test_what_a_table_says_of_its_backward_does_not_change_the_running_order():
    table = make_schedule("1f1b", num_stages=2, num_microbatches=2, num_meshes=2)
    apart = with_delays(table, (0, 0))
    assert running_order(replace(apart, splits_backward=False)) == running_order(apart)


def test_dependencies_are_those_of_the_glossary():
    split = make_schedule("zero-bubble-h1", num_stages=3, num_microbatches=1)
    assert dependencies(Task(FORWARD, 0, 0), split) == ()
    assert dependencies(Task(FORWARD, 2, 0), split) == (Task(FORWARD, 1, 0),)
    assert dependencies(Task(BACKWARD, 2, 0), split) == (Task(FORWARD, 2, 0),)
    assert dependencies(Task(BACKWARD, 1, 0), split) == (Task(FORWARD, 1, 0), Task(BACKWARD, 2, 0))
    assert dependencies(Task(WEIGHT, 1, 0), split) == (Task(BACKWARD, 1, 0),)
