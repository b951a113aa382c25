"""Groups of fewer micro-batches are searched where something is to be beaten."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import meshwise as mw
from inter.search.test_mixed_clusters import OPTIONS, Blocks, Formulas
from meshwise.inter.search.microbatch_counts import groups
from meshwise.inter.search.search import search
from meshwise.intra.options import IntraOptions

CLUSTER = mw.Cluster.virtual("2x dgx-a100")
OPTIONS_OF_8 = replace(OPTIONS, batch_size=8, num_microbatches=None, every_group=False)
# Seconds of all layers on all devices, by B.
WHOLE_S = {1: 1.0, 2: 1.05, 4: 1.3, 8: 1.3}


class FewAreBest(Formulas):
    """One stage is the best with one micro-batch, two stages with eight."""

    def runs(self, variant, num_microbatches, wanted=None):
        runs, n = super().runs(variant, num_microbatches, wanted), variant.mesh.num_devices
        loop_s = super().runs(variant, 1).loop_s
        whole_s = WHOLE_S[num_microbatches] if n == 16 else 0.98 * 16 / n
        loop_s = loop_s / loop_s[0, -1] * whole_s
        nothing = np.where(np.isinf(loop_s), np.inf, 0.0)
        return replace(
            runs,
            cost_s=loop_s,
            loop_s=loop_s,
            once_s=nothing,
            resident_bytes=nothing,
            microbatch_bytes=nothing,
            temporary_bytes=nothing,
        )


@pytest.mark.parametrize("down_to", [1, 2])
def test_a_slower_pipeline_of_more_micro_batches_does_not_end_the_search(down_to):
    assert [group.counts for group in groups(OPTIONS_OF_8, 16)] == [[8, 4, 2], [1]]
    costs = FewAreBest(Blocks(), IntraOptions())
    free, _ = search(Blocks(), CLUSTER, OPTIONS_OF_8, costs=costs)
    assert (free.problem.num_microbatches, len(free.plan.stages)) == (1, 1)
    found, _ = search(
        Blocks(), CLUSTER, OPTIONS_OF_8, costs=costs, below_s=1.04, far_s=1.06, down_to=down_to
    )
    # Two stages with 8 micro-batches take 1.112 s; a simulated step might take less.
    assert found.plan.total_s == free.plan.total_s
