"""The guard: a plan that does not fit never leaves the planner."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

import meshwise as mw
from meshwise.errors import InfeasibleError, PlanError
from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout
from meshwise.plan.fits import (
    MeshBytes,
    StageBytes,
    check_fits,
    check_state_fits,
    local_bytes,
    meshes_of,
)
from meshwise.schedules.registry import make_schedule
from meshwise.units import GIB


def brute_force(tasks: Any, stages: dict[int, StageBytes], splits: bool) -> int:
    """The peak, with a list of what is there after the start of each task."""
    there: list[tuple[int, int, str]] = []
    most = 0
    for kind, stage, microbatch in tasks:
        if kind == "F":
            there.append((stage, microbatch, "activations"))
        sizes = {"activations": "microbatch", "late": "weights"}
        held = sum(getattr(stages[s], sizes[what]) for s, _, what in there)
        most = max(most, held)
        if kind == "B":
            there.remove((stage, microbatch, "activations"))
            if splits:
                there.append((stage, microbatch, "late"))
        if kind == "W":
            there.remove((stage, microbatch, "late"))
    resident = sum(stage.resident for stage in stages.values())
    return resident + most + max(stage.temporary for stage in stages.values())


@pytest.mark.parametrize(
    ("name", "stages", "meshes"),
    [
        ("gpipe", 3, 3),
        ("1f1b", 4, 4),
        ("eager-1f1b", 4, 4),
        ("zero-bubble-h1", 4, 4),
        ("interleaved-1f1b", 4, 2),
    ],
)
def test_the_peak_of_a_mesh_is_that_of_a_walk_over_its_tasks(
    name: str, stages: int, meshes: int
) -> None:
    rng = random.Random(name)
    table = make_schedule(name, num_stages=stages, num_microbatches=8, num_meshes=meshes)
    for mesh in range(meshes):
        mine = {
            k: StageBytes(
                state=0,
                resident=rng.randrange(100),
                microbatch=rng.randrange(100),
                weights=rng.randrange(200),
                temporary=rng.randrange(100),
            )
            for k in range(stages)
            if table.mesh_of_stage[k] == mesh
        }
        tasks = table.tasks[mesh]
        found = MeshBytes(
            name="a mesh",
            memory=0,
            stages=mine,
            tasks=[(task.stage, task.kind) for task in tasks],
            splits_backward=table.splits_backward,
        )
        assert found.peak() == brute_force(tasks, mine, table.splits_backward)


def test_a_mesh_of_several_stages_holds_most_where_their_sum_is_largest() -> None:
    table = make_schedule(
        "interleaved-1f1b", num_stages=4, num_microbatches=8, num_meshes=2, delays=()
    )
    plan: Any = SimpleNamespace(table=lambda: table, num_meshes=2)
    stages = [StageBytes(state=0, resident=0, microbatch=n) for n in (120, 120, 80, 80)]
    first, second = meshes_of(plan, stages, (700, 600, 500, 400))
    # Four micro-batches in flight of stage 0, and one of stage 2; with stages of 100 bytes each it
    # might be three and two, which are 520 bytes.
    assert first.peak() == 560
    assert (first.name, first.memory, set(first.stages)) == ("mesh 0", 500, {0, 2})
    assert (second.name, second.memory, set(second.stages)) == ("mesh 1", 400, {1, 3})


def mesh_of(memory: int, **changes: int) -> MeshBytes:
    stage = {"state": 60, "resident": 70, "microbatch": 10, "temporary": 5} | changes
    return MeshBytes(
        name="stage 3",
        memory=memory,
        stages={3: StageBytes(**stage)},
        tasks=[(3, "F"), (3, "F"), (3, "B"), (3, "B")],
    )


def test_one_byte_too_much_is_refused_with_numbers_and_what_to_do() -> None:
    check_fits([mesh_of(95)], "report it")
    text = (
        r"stage 3 needs 95 B \(95 bytes\) a device, and a device has 94 B \(94 bytes\); report it"
    )
    with pytest.raises(PlanError, match=text):
        check_fits([mesh_of(94)], "report it")


def test_less_than_the_state_alone_is_refused() -> None:
    with pytest.raises(PlanError, match=r"stage 3 counts 50 bytes .* state alone \(60 bytes\)"):
        check_fits([mesh_of(10**6, resident=50)], "report it")


def test_bytes_of_a_part_are_those_of_the_largest() -> None:
    tensor = Tensor(shape=(10, 6), dtype="float32", itemsize=4)
    assert local_bytes(tensor, Layout(((), ())), (4, 2)) == 240
    # Parts of three rows, and of two.
    assert local_bytes(tensor, Layout(((0,), (1,))), (4, 2)) == 3 * 3 * 4
    assert local_bytes(tensor, Layout(((1, 0), ())), (4, 2)) == 2 * 6 * 4


def test_a_state_that_all_devices_cannot_hold_is_refused() -> None:
    cluster = mw.Cluster.virtual("2x p3.16xlarge")
    each = cluster.device.memory_bytes
    check_state_fits(16 * each, cluster, None)
    with pytest.raises(InfeasibleError, match="or 17 devices like the largest"):
        check_state_fits(16 * each + 1, cluster, None)
    check_state_fits(16 * GIB, cluster, GIB)
    with pytest.raises(InfeasibleError, match=r"2x p3.16xlarge is 16 GiB.* keeps less$"):
        check_state_fits(16 * GIB + 1, cluster, GIB)
    with pytest.raises(InfeasibleError) as caught:
        check_state_fits(16 * GIB, cluster, 14)
    assert "memory_bytes=14 is 14 bytes; 14 GiB are 14 * 2**30" in str(caught.value)
