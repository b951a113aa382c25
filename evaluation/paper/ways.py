"""Figure 11: a planned pipeline with other ways to send between its stages.

The plan stays: what it says of the layouts at both ends of a cut decides how much each way sends
and gathers.  Gathering keeps the destination from computing.

Source: Alpa section 8.5 (figure 11); docs/facts.md section 6.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from evaluation.transfers.ways import WAYS, passing
from meshwise.graph.layout import Layout
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.search import FoundPipeline, stage_plan
from meshwise.inter.stages.transfers import bytes_per_s
from meshwise.plan.places import placed
from meshwise.plan.plan import Plan
from meshwise.simulate.chunks import chunk_pipeline
from meshwise.simulate.stage_pipeline import chunk_of


def seconds_by_way(
    plan: Plan, found: FoundPipeline, costs: VariantCosts
) -> tuple[tuple[str, float], ...]:
    """Simulated seconds of a step with each way of `transfers.ways`.

    Args:
        plan: The pipeline.
        found: What it was made of.
        costs: Its plans of layers.
    """
    if len(plan.stages) == 1:
        return ()
    plans = [stage_plan(found, costs, stage) for stage in found.plan.stages]
    # Of what enters a stage, and of what leaves it and comes back as a cotangent.
    ends = [(p.enters, p.leaves) for p in plans]
    return tuple((way, _seconds(way, plan, found, ends)) for way in WAYS)


def _seconds(
    way: str, plan: Plan, found: FoundPipeline, ends: list[tuple[Layout, Layout]]
) -> float:
    # Sent by this way, not by that of the plan.
    chunks = [
        replace(chunk_of(stage), forward_passing=None, backward_passing=None)
        for stage in plan.stages
    ]
    crossing: list[tuple[float, float]] = []
    kinds = [found.kinds[s.submesh] for s in found.plan.stages]
    for k, (left, right) in enumerate(pairwise(plan.stages)):
        rate, _ = bytes_per_s(kinds[k], kinds[k + 1])
        ahead = passing(way, left.send_bytes, ends[k + 1][0], right.mesh, rate)
        behind = passing(way, left.send_bytes, ends[k][1], left.mesh, rate)
        crossing.append((ahead.crossing_bytes, behind.crossing_bytes))
        chunks[k + 1] = replace(chunks[k + 1], forward_gather_s=ahead.gather_s)
        chunks[k] = replace(chunks[k], backward_gather_s=behind.gather_s)
    assert plan.cluster is not None  # it was planned there
    places = [placed(stage, plan.cluster) for stage in plan.stages]
    table = plan.table()
    return chunk_pipeline(
        plan.cluster,
        table.mesh_of_stage,
        chunks,
        [(place.hosts, place.num_devices) for place in places],
        crossing,
        hides_transfers=plan.hides_transfers,
    ).step_time_s(table)
