"""Stages on equal hosts: in the order of the devices, or anywhere, and what the simulator says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from meshwise.cluster.spec import ClusterSpec
from meshwise.inter.search.search_space import submeshes_of
from meshwise.inter.stages import placed_construction, stage_construction
from meshwise.inter.stages.placed_construction import build_placed
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem
from meshwise.inter.stages.transfers import transfer_s
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.simulate.chunks import Chunk, chunk_pipeline

CLUSTER = ClusterSpec.virtual("2x p3.16xlarge")


class Layers:
    def __init__(self, count, crossing_bytes):
        self.classes = (0,) * count
        self._bytes = crossing_bytes

    def crossing_bytes(self, layer):
        return self._bytes


def problem_of(shapes, times, crossing_bytes=8e9, num_microbatches=32):
    """Each layer is a stage, and runs on one shape only."""
    kinds, submeshes = submeshes_of(CLUSTER, every=False, memory_bytes=None, places=True)
    count = len(shapes)
    seconds = np.full((count, count, len(kinds), 1), np.inf)
    for i, (shape, second) in enumerate(zip(shapes, times, strict=True)):
        for m, kind in enumerate(kinds):
            if kind.shape == shape:
                seconds[i, i, m] = second
    nothing = np.zeros_like(seconds)
    inner = [m.is_inner for m in submeshes]
    return StageProblem(
        costs=StageCosts(
            submeshes=tuple(submeshes),
            microbatch_s=seconds,
            once_s=nothing,
            resident_bytes=nothing,
            microbatch_bytes=nothing,
            temporary_bytes=nothing,
        ),
        num_devices=CLUSTER.num_devices,
        num_microbatches=num_microbatches,
        schedule=ONE_F_ONE_B,
        transfer_s=transfer_s(Layers(count, crossing_bytes), kinds, num_microbatches, inner),
        use_all_devices=True,
    )


def simulated_s(plan, problem, crossing_bytes=8e9):
    count = problem.num_microbatches
    at = [(s.first_layer, s.last_layer, s.submesh, s.variant) for s in plan.stages]
    seconds = [float(problem.costs.microbatch_s[i]) for i in at]
    submeshes = [problem.costs.submeshes[s.submesh] for s in plan.stages]
    hosts = [s.first_device // 8 for s in plan.stages]
    table = problem.schedule.table(len(seconds), count, len(seconds))
    return chunk_pipeline(
        CLUSTER,
        table.mesh_of_stage,
        [
            Chunk(
                forward_s=0.3 * s,
                backward_s=0.7 * s,
                once_s=0.0,
                resident_bytes=0.0,
                microbatch_bytes=0.0,
                temporary_bytes=0.0,
            )
            for s in seconds
        ],
        [
            (range(h, h + m.num_hosts), m.devices_per_host)
            for h, m in zip(hosts, submeshes, strict=True)
        ],
        [(crossing_bytes / count,) * 2 for _ in pairwise(plan.stages)],
        hides_transfers=problem.schedule.hides_transfers,
    ).step_time_s(table)


@pytest.mark.parametrize(
    ("shapes", "times"),
    [
        # The last stage is the slowest: what it receives stops it too.
        (((1, 4), (1, 4), (1, 8)), (1.0, 1.0, 1.3)),
        (((1, 8), (1, 8)), (1.0, 1.2)),
        # The second and third half of a host could share one, but do not.
        (((1, 4), (1, 4), (1, 4), (1, 4)), (1.0, 1.2, 1.2, 1.0)),
        (((1, 4), (1, 2), (1, 2), (1, 8)), (1.0, 1.0, 1.2, 1.1)),
    ],
)
def test_the_formula_is_what_the_simulator_finds(shapes, times):
    problem = problem_of(shapes, times)
    plan = build_placed(problem, CLUSTER, np.inf)
    assert plan is not None
    assert [problem.costs.submeshes[s.submesh].shape for s in plan.stages] == list(shapes)
    assert plan.total_s == pytest.approx(simulated_s(plan, problem), rel=0.01)


def test_shapes_that_do_not_follow_each_other_have_a_place():
    problem = problem_of(((1, 4), (1, 8), (1, 4)), (1.0, 1.0, 1.0))
    plan = build_placed(problem, CLUSTER, np.inf)
    assert plan is not None
    # The two halves share a host.
    assert [s.first_device for s in plan.stages] == [0, 8, 4]
    assert [problem.costs.submeshes[s.submesh].is_inner for s in plan.stages] == [False] * 3
    # Both boundaries go over the network cards.
    rate = CLUSTER.host_at(0).nics_bytes_per_s
    assert plan.time.transfer_s == pytest.approx(2 * 2 * 8e9 / 32 / rate, rel=1e-3)
    assert build_placed(problem, CLUSTER, plan.total_s) is None


@pytest.mark.parametrize("seed", range(12))
def test_coarse_stages_first_lose_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(seed)
    kinds, submeshes = submeshes_of(CLUSTER, every=False, memory_bytes=None, places=True)
    count = 6
    length = np.arange(count)[None, :] - np.arange(count)[:, None] + 1
    sizes = np.array([kind.num_devices for kind in kinds])
    seconds = np.where(length > 0, length, np.inf)[:, :, None] / sizes
    seconds = (seconds * draw.uniform(1, 1.5, seconds.shape))[..., None]
    nothing = np.zeros_like(seconds)
    inner = [m.is_inner for m in submeshes]
    problem = StageProblem(
        costs=StageCosts(
            submeshes=tuple(submeshes),
            microbatch_s=seconds,
            once_s=0.1 * np.where(np.isfinite(seconds), seconds, 0.0),
            resident_bytes=nothing,
            microbatch_bytes=nothing,
            temporary_bytes=nothing,
        ),
        num_devices=CLUSTER.num_devices,
        num_microbatches=(4, 64)[seed % 2],
        transfer_s=transfer_s(Layers(count, 1e6), kinds, 4, inner),
        use_all_devices=True,
    )
    plain = build_placed(problem, CLUSTER, np.inf)
    for module in (placed_construction, stage_construction):
        monkeypatch.setattr(module, "MANY", 8)
    coarse = build_placed(problem, CLUSTER, np.inf)
    assert plain is not None
    assert coarse is not None
    assert abs(coarse.total_s - plain.total_s) <= plain.error_s
    assert coarse.bound_s <= min(coarse.total_s, plain.total_s)
    assert coarse.space == plain.space
    taken = sorted((s.first_device, submeshes[s.submesh].num_devices) for s in coarse.stages)
    ends = [first + size for first, size in taken]
    assert [first for first, _ in taken] == [0, *ends[:-1]]
    assert ends[-1] == CLUSTER.num_devices
