"""Bounds of pipelines with several stages a mesh: below every simulated step, and tight."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwise as mw
from meshwise.inter.search.best_cuts import least_of_largest, least_sum
from meshwise.inter.search.chunk_bounds import (
    crowded,
    held_together,
    least_held_bytes,
    least_step_s,
)
from meshwise.kernels.arrays import Floats
from meshwise.schedules.dual_pipe_v import DUAL_PIPE_V
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.zero_bubble_v import ZERO_BUBBLE_V
from meshwise.simulate.chunks import Chunk, chunk_pipeline
from meshwise.simulate.timeline import Timeline

CLUSTER = mw.Cluster.virtual("2x p3.8xlarge")
SCHEDULES = (
    Interleaved(chunks=2),
    Interleaved(chunks=2, hides_transfers=True),
    Interleaved(chunks=3, hides_transfers=True),
    ZERO_BUBBLE_V,
    DUAL_PIPE_V,
)


class Layer(NamedTuple):
    """What a layer takes and holds."""

    forward_s: int
    backward_s: int
    once_s: int
    resident_bytes: int
    microbatch_bytes: int


layers = st.builds(
    Layer,
    forward_s=st.integers(1, 9),
    backward_s=st.integers(1, 9),
    once_s=st.integers(0, 30),
    resident_bytes=st.integers(0, 50),
    microbatch_bytes=st.integers(0, 9),
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[PipelineSchedule, int, int, list[Layer]]:
    """A schedule, meshes, micro-batches, and layers, at most three more than there are stages."""
    schedule, meshes = draw(st.sampled_from(SCHEDULES)), draw(st.sampled_from((2, 3)))
    rounds = draw(st.integers(1, 2))
    count = meshes * rounds + (meshes if schedule.chunks == 2 and schedule.splits_backward else 0)
    stages = meshes * schedule.chunks
    size = draw(st.integers(stages, stages + 2))
    return schedule, meshes, count, draw(st.lists(layers, min_size=size, max_size=size))


def sums(values: list[int]) -> Floats:
    """For (first, last) the sum from first to last."""
    count = len(values)
    found = np.full((count, count), np.inf)
    for i, j in itertools.combinations_with_replacement(range(count), 2):
        found[i, j] = sum(values[i : j + 1])
    return found


def cuts(count: int, parts: int) -> list[list[tuple[int, int]]]:
    every = itertools.combinations(range(1, count), parts - 1)
    return [list(itertools.pairwise((0, *bounds, count))) for bounds in every]


def simulated(
    schedule: PipelineSchedule, meshes: int, count: int, stages: list[list[Layer]], sent: float
) -> Timeline:
    """A step of stages; their boundaries carry so many bytes."""
    table = schedule.table(len(stages), count, meshes)
    return chunk_pipeline(
        CLUSTER,
        table.mesh_of_stage,
        [
            Chunk(
                forward_s=sum(x.forward_s for x in stage),
                backward_s=sum(x.backward_s for x in stage),
                once_s=sum(x.once_s for x in stage),
                resident_bytes=sum(x.resident_bytes for x in stage),
                microbatch_bytes=sum(x.microbatch_bytes for x in stage),
                temporary_bytes=0,
            )
            for stage in stages
        ],
        [([k * 2 // meshes], 8 // meshes) for k in range(meshes)],
        [(sent, sent)] * (len(stages) - 1),
        hides_transfers=schedule.hides_transfers,
    ).simulate(table)


@given(problem=problems(), sent=st.sampled_from((0.0, 1e9)), data=st.data())
def test_no_simulated_step_is_below(
    problem: tuple[PipelineSchedule, int, int, list[Layer]], sent: float, data: st.DataObject
) -> None:
    schedule, meshes, count, every = problem
    loop_s = count * sums([x.forward_s + x.backward_s for x in every])
    resident = sums([x.resident_bytes for x in every])
    each = sums([x.microbatch_bytes for x in every])
    least_s = least_step_s(loop_s, schedule, meshes, count)
    held = held_together(schedule, meshes, min(count, 2 * meshes))
    least = least_held_bytes(resident, each, held, meshes)
    ranges = data.draw(st.sampled_from(cuts(len(every), meshes * schedule.chunks)))
    stages = [every[a:b] for a, b in ranges]
    found = simulated(schedule, meshes, count, stages, sent)
    assert least_s <= found.step_time_s * (1 + 1e-9)
    assert least <= max(found.peak_bytes) + 1e-9


@given(
    whole=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    part=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    times=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    missing=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))),
)
def test_the_least_of_cuts_is_that_of_all(
    whole: list[int], part: list[int], times: list[int], missing: set[tuple[int, int]]
) -> None:
    cost, second = sums(whole), sums(part)
    for at in missing:
        cost[at] = np.inf
    every = [
        [cost[a, b - 1] + n * second[a, b - 1] for n, (a, b) in zip(times, ranges, strict=True)]
        for ranges in cuts(4, len(times))
    ]
    found = least_sum(cost, second, np.array(times, np.float64))
    assert found == min(map(sum, every), default=np.inf)
    largest = [max(cost[a, b - 1] for a, b in ranges) for ranges in cuts(4, len(times))]
    assert least_of_largest(cost, len(times)) == min(largest, default=np.inf)


@given(amounts=st.lists(st.integers(0, 9), min_size=1, max_size=6), meshes=st.integers(1, 4))
def test_layers_that_cannot_be_divided_crowd_a_mesh(amounts: list[int], meshes: int) -> None:
    def fullest(places: tuple[int, ...]) -> int:
        return max(
            sum(a for a, at in zip(amounts, places, strict=True) if at == mesh)
            for mesh in range(meshes)
        )

    best = min(map(fullest, itertools.product(range(meshes), repeat=len(amounts))))
    assert crowded(np.array(amounts, float), meshes) <= best


def test_equal_stages_without_transfers_reach_the_bound() -> None:
    # Interleaved 1F1B: its bubble is that of the last mesh.
    every = [Layer(1, 2, 0, 0, 1)] * 12
    for chunks in (2, 3):
        schedule = Interleaved(chunks=chunks, hides_transfers=True)
        size = 12 // (2 * chunks)
        stages = [every[k : k + size] for k in range(0, 12, size)]
        found = simulated(schedule, 2, 8, stages, 0.0)
        bound_s = least_step_s(8 * sums([3] * 12), schedule, 2, 8)
        assert found.step_time_s == pytest.approx(8 * 18 + 3 * size, rel=1e-4)
        # A first stage of one layer makes the bubble least; the first mesh has none by the bound.
        assert bound_s == 8 * 18 + 3 / 2
