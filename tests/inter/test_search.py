"""One search over micro-batches and schedules finds the best of searches for each alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import meshwise as mw
from inter.test_mixed_clusters import OPTIONS, Blocks, Formulas
from meshwise.errors import InfeasibleError
from meshwise.inter.pipeline_schedule import EAGER, GPIPE, ONE_F_ONE_B
from meshwise.inter.search import search
from meshwise.intra.options import IntraOptions
from meshwise.units import GIB

COUNTS = (8, 16, 32, 64)
CLUSTER = mw.Cluster.virtual("2x dgx-a100")
SCHEDULES = (ONE_F_ONE_B, EAGER, GPIPE)


def seconds(**changes: object) -> float:
    """Seconds of the best step; infinite if nothing fits."""
    options = replace(OPTIONS, **changes)
    try:
        found, _ = search(Blocks(), CLUSTER, options, costs=Formulas(Blocks(), IntraOptions()))
    except InfeasibleError:
        return math.inf
    assert found.plan.total_s == found.tried[found.problem.num_microbatches]
    return found.plan.total_s


# Where memory is large, and where few ways fit.
@pytest.mark.parametrize("memory_gib", [80, 16, 10])
def test_together_as_one_by_one(memory_gib: int) -> None:
    memory_bytes = memory_gib * GIB
    alone = [
        seconds(num_microbatches=(count,), schedules=(schedule,), memory_bytes=memory_bytes)
        for count in COUNTS
        for schedule in SCHEDULES
    ]
    # Else there is nothing to choose from.
    assert len({s for s in alone if s < math.inf}) > 2
    together = seconds(num_microbatches=COUNTS, schedules=SCHEDULES, memory_bytes=memory_bytes)
    assert together == min(alone)
