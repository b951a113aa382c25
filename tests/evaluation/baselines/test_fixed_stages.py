"""Fixed stages: closed forms of schedules, memory options, and the best of many candidates."""

from __future__ import annotations

import math

import pytest
from evaluation.baselines.fixed_stages import FixedStages
from evaluation.baselines.result import Candidate, Refused, best_of, least_s

import meshwise as mw
from doubles.layered import run_cost
from meshwise.baselines.pipelines.simulated import SimulatedPipeline, simulate
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B

HOST = mw.Cluster.virtual("1x p3.16xlarge")
QUARTER = next(k for k in HOST.submesh_kinds() if k.shape == (1, 2))
WAYS = tuple(
    Variant(mesh=QUARTER.mesh((2,)), remat=remat, price=BytePrice()) for remat in ("none", "full")
)
B = 8


def pipeline(chunks, schedule=ONE_F_ONE_B, meshes=4, num_bytes=0.0):
    return SimulatedPipeline(
        chunks=tuple(chunks),
        crossing_bytes=(num_bytes,) * (len(chunks) - 1),
        meshes=(QUARTER,) * meshes,
        num_microbatches=B,
        schedule=schedule,
    )


class Costs:
    """Costs of runs by a function of variant, first and last layer."""

    def __init__(self, cost):
        self.cost = cost

    def run(self, variant, num_microbatches, first, last):
        del num_microbatches
        return self.cost(variant, first, last)


def chosen(cost, memory_bytes, num_chunks=4, schedule=ONE_F_ONE_B):
    stages = FixedStages(
        label="label",
        kind=QUARTER,
        chunks=tuple((k, k) for k in range(num_chunks)),
        crossing_bytes=[0.0] * (num_chunks - 1),
        num_microbatches=B,
        schedule=schedule,
        memory_bytes=memory_bytes,
    )
    return stages.best(WAYS, Costs(cost))


def test_equal_stages_take_what_1f1b_takes():
    timeline = simulate(pipeline([run_cost(once_s=2.0)] * 4), HOST)
    # Latency of transfers is some microseconds.
    assert timeline.step_time_s == pytest.approx(3.0 * (B + 3) + 2.0, abs=1e-3)
    assert timeline.peak_bytes == (14, 13, 12, 11)


def test_interleaving_divides_the_bubble():
    half = run_cost(forward_s=0.5, backward_s=1.0, resident_bytes=5.0)
    timeline = simulate(pipeline([half] * 8, Interleaved(chunks=2)), HOST)
    assert timeline.step_time_s == pytest.approx(3.0 * (B + 3 / 2), abs=1e-3)


def test_one_mesh_has_no_transfers():
    timeline = simulate(pipeline([run_cost()], meshes=1), HOST)
    assert timeline.step_time_s == pytest.approx(3.0 * B)
    assert not timeline.transfers


def test_transfers_between_hosts_take_their_time():
    two = mw.Cluster.virtual("2x p3.16xlarge")
    whole = next(k for k in two.submesh_kinds() if k.shape == (1, 8))
    num_bytes = two.nic.bytes_per_s
    sent = SimulatedPipeline(
        chunks=(run_cost(), run_cost()),
        crossing_bytes=(num_bytes,),
        meshes=(whole, whole),
        num_microbatches=1,
        schedule=ONE_F_ONE_B,
    )
    # A second there and a second back.
    assert simulate(sent, two).step_time_s == pytest.approx(6.0 + 2.0, rel=1e-3)


def remat_costs(way, first, last):
    del last
    if way.remat == "full":
        return run_cost(backward_s=3.0)
    return run_cost(microbatch_bytes=10.0)


def test_what_fits_needs_no_other_memory_option():
    asked = []

    def cost(way, first, last):
        asked.append(way.remat)
        return remat_costs(way, first, last)

    found = chosen(cost, memory_bytes=100.0)
    assert isinstance(found, Candidate)
    assert {s.remat for s in found.stages} == {"none"}
    assert set(asked) == {"none"}


def test_only_stages_with_much_in_flight_recompute():
    found = chosen(remat_costs, memory_bytes=30.0)
    assert isinstance(found, Candidate)
    # 10 resident and 10 for each of 4, 3, 2, 1 micro-batches in flight; the limit is 30.
    assert [s.remat for s in found.stages] == ["full", "full", "none", "none"]
    assert simulate(found.pipeline, HOST).peak_bytes == (14, 13, 30, 20)
    assert found.objective_s == pytest.approx(4 + 4 + 3 + 3 + 4.0 * (B - 1), abs=1e-3)


def test_the_objective_of_interleaved_chunks_counts_all_of_a_mesh():
    found = chosen(lambda *_: run_cost(), 1e9, num_chunks=8, schedule=Interleaved(chunks=2))
    assert isinstance(found, Candidate)
    assert len(found.pipeline.meshes) == 4
    assert found.objective_s == pytest.approx(6.0 * (B + 3 / 2), abs=1e-3)


def test_what_does_not_fit_is_refused_with_numbers():
    found = chosen(remat_costs, memory_bytes=10.5)
    assert isinstance(found, Refused)
    assert "does not fit into memory" in found.why
    assert "no layer has a plan" in chosen(lambda *_: None, 1e9).why  # pyright: ignore


def candidate(label, seconds, resident=10.0):
    cost = run_cost(forward_s=seconds / 3, backward_s=2 * seconds / 3, resident_bytes=resident)
    chunks = [cost] * 4
    return Candidate(label=label, objective_s=seconds * 11, stages=(), pipeline=pipeline(chunks))


def test_the_fastest_that_fits_is_chosen_and_all_are_listed():
    points = [
        Refused(label="odd", why="cannot be"),
        candidate("slow", 3.0),
        candidate("large", 1.0, resident=1e6),
        candidate("good", 2.0),
        candidate("worst", 30.0),
    ]
    result = best_of("name", points, HOST, 1000.0)
    assert result.fits
    assert result.chosen == "good"
    assert result.num_microbatches == B
    assert result.step_time_s == pytest.approx(22.0, abs=1e-3)
    assert [t.label for t in result.tried] == ["odd", "slow", "large", "good", "worst"]
    # What cannot be faster than the best is not simulated.
    assert [t.step_time_s is None for t in result.tried] == [True, True, False, False, True]
    assert result.tried[2].why == "the simulated peak does not fit"


def test_the_bound_that_prunes_is_one():
    for chunks, schedule in (
        ([run_cost(backward_s=m - 1, once_s=1.0) for m in (1.0, 5.0, 2.0, 3.0)], ONE_F_ONE_B),
        ([run_cost(backward_s=m - 1) for m in range(2, 10)], Interleaved(chunks=2)),
    ):
        sent = pipeline(chunks, schedule)
        assert least_s(sent) <= simulate(sent, HOST).step_time_s


def test_nothing_that_fits_says_why():
    result = best_of("name", [Refused(label="a", why="too large")], HOST, 1.0)
    assert not result.fits
    assert math.isinf(result.step_time_s)
    assert result.why == "a: too large"
    assert best_of("name", [], HOST, 1.0).why == "its grid has no point on this cluster"
