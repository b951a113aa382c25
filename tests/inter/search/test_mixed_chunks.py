"""Pipelines with stages at two prices of memory: they fit, and are faster than those at one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import meshwise as mw
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.layer_cost.run_costs import RunCosts
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.inter.search.chunked_pipeline import ChunkedPipeline, Shape, pipeline_in_ways
from meshwise.inter.search.mixed_chunks import best_mixed
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.stages.objective import StepTime
from meshwise.pieces.piece import PieceGraph
from meshwise.plan.stage import Remat
from meshwise.schedules.registry import SEARCHED

MESHES, CHUNKS, COUNT = 2, 8, 8
LAYERS = MESHES * CHUNKS
KIND = mw.Cluster.virtual("2x p3.2xlarge").submesh_kinds()[0]
SCHEDULE = replace(next(s for s in SEARCHED if s.any_chunks), chunks=CHUNKS)
SHAPE = Shape(KIND, MESHES, COUNT, 2, SCHEDULE)


class Source:
    """Equal layers, between which nothing is sent."""

    classes = (0,) * LAYERS

    def graph(
        self, first: int, last: int, num_microbatches: int, remat: Remat = "none"
    ) -> PieceGraph:
        """No graph is needed."""
        raise NotImplementedError

    def crossing_bytes(self, layer: int) -> int:
        """Return nothing."""
        return layer * 0


def pipeline(
    loop_s: float,
    held_bytes: float,
    temporary: float = 0.0,
    unknown: int = -1,
    shape: Shape = SHAPE,
) -> ChunkedPipeline:
    """One layer a stage, each with the same costs, but for one whose costs are unknown."""
    size = shape.num_stages
    full = np.full((size, size), np.inf)
    one = {"loop_s": loop_s, "resident_bytes": held_bytes, "temporary_bytes": temporary}
    known = np.eye(size) > 0
    if unknown >= 0:
        known[unknown, unknown] = False
    amounts = {name: np.where(known, value, full) for name, value in one.items()}
    zeros = np.zeros((size, size))
    runs = RunCosts(cost_s=zeros, gather_s=zeros, once_s=zeros, microbatch_bytes=zeros, **amounts)
    way = Variant(mesh=KIND.mesh((1,)), remat="none", price=BytePrice(seconds_per_byte=loop_s))
    cuts = tuple((k, k) for k in range(size))
    made = pipeline_in_ways(shape, (way,), (runs,), cuts, (0,) * size, Source())
    # It is as if it had been cut otherwise, where that layer has costs.
    time = StepTime(fill_s=0.0, transfer_s=0.0, steady_s=9 * loop_s, once_s=0.0)
    return made if unknown < 0 else replace(made, time=time, least_s=0.0, peak_bytes=0.0)


@pytest.mark.parametrize("room", [45, 52, 60, 71])
def test_as_few_stages_as_must_hold_less(room: int) -> None:
    fast, slow = pipeline(1.0, 10.0), pipeline(2.0, 5.0)
    mixed = best_mixed([fast, slow], room, Source())
    assert mixed is not None
    # Eight stages of 10 bytes on a mesh; each that holds less saves 5.
    num_slow = -(-(80 - room) // 5)
    assert mixed.peak_bytes == 80 - 5 * num_slow <= room
    assert mixed.way_of_stage == tuple(int(k // MESHES < num_slow) for k in range(LAYERS))
    assert fast.time.total_s < mixed.time.total_s < slow.time.total_s
    assert mixed.least_s >= fast.least_s


def test_the_pair_is_the_one_whose_line_is_lowest() -> None:
    """A dearer price that holds more than a cheaper one is no reason to take it."""
    fast, odd, slow = pipeline(1.0, 10.0), pipeline(1.9, 11.0), pipeline(2.0, 5.0)
    mixed = best_mixed([fast, odd, slow], 60, Source())
    alone = best_mixed([fast, slow], 60, Source())
    assert mixed is not None
    assert alone is not None
    assert (mixed.ways, mixed.time) == (alone.ways, alone.time)


def test_what_does_not_pay_is_left_alone() -> None:
    fast, slow = pipeline(1.0, 10.0), pipeline(2.0, 5.0)
    assert best_mixed([fast], 60, Source()) is None
    assert best_mixed([slow], 60, Source()) is None
    # Something else fits already, and is as fast.
    assert best_mixed([fast, slow, pipeline(1.0, 7.0)], 60, Source()) is None
    # Temporary values are not a sum: a mesh has room for the largest ones or not.
    assert best_mixed([pipeline(1.0, 5.0, 30.0), pipeline(2.0, 5.0)], 60, Source()) is None


def test_a_stage_of_unknown_costs_is_passed_by() -> None:
    """With two slow stages on each mesh it fits; the seventh stage has no costs as a slow one."""
    fast, slow = pipeline(1.0, 10.0), pipeline(2.0, 5.0, unknown=6)
    mixed = best_mixed([fast, slow], 70, Source())
    assert mixed is not None
    assert sum(mixed.way_of_stage) == 2 * MESHES
    assert best_mixed([fast, slow], 55, Source()) is None


def test_what_cannot_be_as_fast_as_its_closed_form_is_left_alone() -> None:
    """Where a micro-batch first passes the slow stages, the closed form for equal stages is low."""
    shape = Shape(KIND, 8, 8, 8, replace(SCHEDULE, chunks=2))
    seconds = {"fast": 1.0, "one way": 1.55, "slow": 2.0}
    held = {"fast": 10.0, "one way": 6.0, "slow": 2.0}
    planned = [pipeline(8 * seconds[k], held[k], shape=shape) for k in seconds]
    assert best_mixed(planned, 13, Source()) is None
    assert best_mixed([planned[0], planned[2]], 13, Source()) is not None
    assert best_mixed([planned[0], planned[2]], 13, Source(), below_s=30.0) is None


def test_stages_say_how_they_are_planned() -> None:
    mixed = best_mixed([pipeline(1.0, 10.0), pipeline(2.0, 5.0)], 60, Source())
    assert mixed is not None
    found = mixed.found(SearchOptions(batch_size=COUNT, step_flop=1.0), "", {})
    for stage in found.plan.stages:
        at = stage.first_layer, stage.last_layer, stage.submesh, stage.variant
        costs = found.problem.costs
        slow = found.variants[stage.submesh][stage.variant].price.seconds_per_byte == 2.0
        assert costs.microbatch_s[at] * COUNT == (2.0 if slow else 1.0)
        assert costs.resident_bytes[at] == (5.0 if slow else 10.0)
