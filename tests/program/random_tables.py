"""Random schedules: tables that a user might write, and those of the registry."""

from __future__ import annotations

import random

from meshwise.program.emit import emit
from meshwise.program.instructions import PipelineProgram
from meshwise.schedules.delay import with_delays
from meshwise.schedules.registry import SCHEDULES, make_schedule
from meshwise.schedules.schedule import Schedule, Task, dependencies
from program.specs import chain

NAMES = (
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "zero-bubble-h1",
    "interleaved-1f1b",
    "zb-v",
    "dualpipe-v",
)


def random_table(rng: random.Random, most_stages: int = 5, most_microbatches: int = 4) -> Schedule:
    """Tasks of all meshes in a random order in which they can run."""
    num_stages = rng.randint(1, most_stages)
    num_meshes = rng.randint(1, num_stages)
    others = [rng.randrange(num_meshes) for _ in range(num_stages - num_meshes)]
    mesh_of_stage = [*range(num_meshes), *others]
    rng.shuffle(mesh_of_stage)
    empty = Schedule(
        name="random",
        num_stages=num_stages,
        num_microbatches=rng.randint(1, most_microbatches),
        num_meshes=num_meshes,
        tasks=((),) * num_meshes,
        splits_backward=rng.random() < 0.5,
        mesh_of_stage=tuple(mesh_of_stage),
    )
    left = [
        Task(kind, stage, m)
        for kind in empty.kinds
        for stage in range(num_stages)
        for m in range(empty.num_microbatches)
    ]
    done: set[Task] = set()
    lists: list[list[Task]] = [[] for _ in range(num_meshes)]
    while left:
        ready = [t for t in left if all(d in done for d in dependencies(t, empty))]
        task = rng.choice(ready)
        left.remove(task)
        done.add(task)
        lists[mesh_of_stage[task.stage]].append(task)
    return Schedule(
        name="random",
        num_stages=num_stages,
        num_microbatches=empty.num_microbatches,
        num_meshes=num_meshes,
        tasks=tuple(map(tuple, lists)),
        splits_backward=empty.splits_backward,
        mesh_of_stage=empty.mesh_of_stage,
    )


def random_schedule(rng: random.Random) -> Schedule:
    """A random table, or one of the registry, some with delayed gradients of weights."""
    if rng.random() < 0.4:
        return random_table(rng)
    name, meshes = rng.choice(NAMES), rng.randint(1, 4)
    chunks, several = SCHEDULES[name].chunks, name == "interleaved-1f1b"
    made = make_schedule(
        name,
        num_stages=meshes * (rng.randint(1, 2) if several else chunks),
        num_microbatches=meshes * rng.randint(1, 2) * chunks if chunks > 1 else rng.randint(1, 4),
        num_meshes=meshes,
    )
    if made.splits_backward or rng.random() < 0.6:
        return made
    return with_delays(made, [rng.randint(0, 4) for _ in range(meshes)])


def random_program(rng: random.Random) -> tuple[Schedule, PipelineProgram]:
    """The program of a chain of layers, uneven stages included."""
    schedule = random_schedule(rng)
    stages = [s for s in range(schedule.num_stages) for _ in range(rng.randint(1, 2))]
    layers = chain(stages, skips=rng.random() < 0.7, splits=schedule.splits_backward)
    return schedule, emit(*layers, schedule)
