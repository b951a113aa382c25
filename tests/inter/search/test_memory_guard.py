"""A planner that is wrong about memory returns an error, no plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import meshwise as mw
from meshwise.errors import PlanError
from meshwise.inter.cost_table.variant_costs import RunPlan, VariantCosts
from meshwise.inter.layer_cost.footprint import Footprint
from meshwise.inter.layer_cost.run_costs import RunCosts
from meshwise.inter.search.finishing import finished
from meshwise.inter.search.search import search
from meshwise.inter.search.search_space import SearchOptions
from request.test_pipeline_pins import layering

CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")


class Wrong(VariantCosts):
    """Plans layers, and says that each holds half of what it does."""

    def runs(self, *args: Any) -> RunCosts | None:
        runs = super().runs(*args)
        return runs and replace(
            runs,
            resident_bytes=runs.resident_bytes / 2,
            microbatch_bytes=runs.microbatch_bytes / 2,
            temporary_bytes=runs.temporary_bytes / 2,
        )

    def run_plan(self, *args: Any) -> RunPlan:
        found = super().run_plan(*args)
        return found._replace(
            entries=tuple(replace(e, memory=_half(e.memory)) for e in found.entries)
        )


def _half(held: Footprint) -> Footprint:
    return replace(
        held,
        resident_bytes=held.resident_bytes // 2,
        microbatch_bytes=held.microbatch_bytes // 2,
        temporary_bytes=held.temporary_bytes // 2,
    )


def planned(kind: type[VariantCosts], memory_bytes: int | None, free_share: float = 0.0) -> Any:
    layers = layering(3)
    options = SearchOptions(
        batch_size=32,
        step_flop=1e6,
        num_microbatches=(4,),
        memory_bytes=memory_bytes,
        reserved_share=free_share,
    )
    found, costs = search(layers, CLUSTER, options, costs=kind(layers, options.intra))
    return finished(
        layers, CLUSTER, found, costs, batch_size=32, step_flop=1e6, memory_bytes=memory_bytes
    )[0]


def test_what_a_wrong_search_finds_is_refused() -> None:
    loose = planned(VariantCosts, None)
    limit = int(0.9 * loose.peak_bytes)
    # The search does what it can with such a limit, and the guard agrees.
    waiting = max(stage.waiting_bytes for stage in loose.stages)
    assert waiting > 0
    free_share = 2 * waiting / limit
    assert planned(VariantCosts, limit, free_share).peak_bytes <= limit
    with pytest.raises(PlanError, match=f"a device has .*{limit} bytes.*please report this"):
        planned(Wrong, limit, free_share)
