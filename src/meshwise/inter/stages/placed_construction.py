"""Equal hosts: stages in the order of the devices, or anywhere, with the better of both.

In the order of the devices it is known which boundaries lie inside a host.  Some choices of shapes
do not follow each other that way, as half a host, a whole one, half a one; with
`placement.place_stages` all of the paper's shapes have a place, but then any boundary may lie
between hosts, and is priced so.

On very many devices a coarse search over large submeshes comes first.  The whole search follows,
for faster stages alone, so nothing is lost; it is quick since the coarse stages rule most out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwise.cluster.spec import ClusterSpec
from meshwise.inter.stages.directions import build_either_way
from meshwise.inter.stages.placement import place_stages
from meshwise.inter.stages.stage_construction import MANY, StagePlan, build_stages_below
from meshwise.inter.stages.stage_problem import StageProblem

# In the coarse search a submesh has at least num_devices / (this * num_layers) devices.
_SMALLER = 8


def build_placed(
    problem: StageProblem, cluster: ClusterSpec, at_most_s: float, *, num_stages: int | None = None
) -> StagePlan | None:
    """The best stages, at their places if submeshes have any, if they take less than `at_most_s`.

    Args:
        problem: What is to be cut.
        cluster: Where it runs.
        at_most_s: Only faster plans are wanted.
        num_stages: Exactly so many; any number by default.

    Returns:
        None if none fit or none is faster.
    """
    first = _coarse(problem, cluster, at_most_s, num_stages)
    if first is None:
        return _placed(problem, cluster, at_most_s, num_stages)
    better = _placed(problem, cluster, first.total_s, num_stages)
    # What the search may have missed is not proved.
    return better or replace(first, bound_s=first.total_s - first.error_s)


def _coarse(
    problem: StageProblem, cluster: ClusterSpec, at_most_s: float, num_stages: int | None
) -> StagePlan | None:
    """The best stages on large submeshes, where there are very many devices; None if none fit."""
    if problem.num_devices <= MANY:
        return None
    least = problem.num_devices / (_SMALLER * problem.costs.num_layers)
    submeshes = problem.costs.submeshes
    large = [m for m in _outer(problem, cluster) if submeshes[m].num_devices >= least]
    return _anywhere(problem, cluster, large, at_most_s, num_stages) if large else None


def _placed(
    problem: StageProblem, cluster: ClusterSpec, at_most_s: float, num_stages: int | None
) -> StagePlan | None:
    """The best stages in the order of the devices, or anywhere; the arguments of `build_placed`."""
    ordered = build_either_way(problem, at_most_s, num_stages=num_stages)
    outer = _outer(problem, cluster)
    if not outer:
        return ordered
    cutoff = at_most_s if ordered is None else ordered.total_s
    free = _anywhere(problem, cluster, outer, cutoff, num_stages)
    if free is None:
        return ordered
    bound_s = free.bound_s if ordered is None else min(free.bound_s, ordered.bound_s)
    return replace(free, bound_s=bound_s)


def _anywhere(
    problem: StageProblem,
    cluster: ClusterSpec,
    chosen: list[int],
    at_most_s: float,
    num_stages: int | None,
) -> StagePlan | None:
    """The best stages on some of the submeshes, wherever they lie, at places that they have."""
    free = build_stages_below(_without_places(problem, chosen), at_most_s, num_stages=num_stages)
    if free is None:
        return None
    submeshes = problem.costs.submeshes
    shapes = [submeshes[s.submesh].shape for s in free.stages]
    first = place_stages(shapes, cluster.num_hosts, cluster.devices_per_host)
    stages = tuple(replace(s, first_device=p) for s, p in zip(free.stages, first, strict=True))
    return replace(free, stages=stages)


def _outer(problem: StageProblem, cluster: ClusterSpec) -> list[int]:
    """The submeshes that begin a host, if `place_stages` has a place for all shapes."""
    submeshes = problem.costs.submeshes
    if cluster.is_mixed or any(m.starts is None for m in submeshes):
        return []
    size = cluster.devices_per_host
    are_round = not size & (size - 1) and all(
        m.devices_per_host == size or not m.num_devices & (m.num_devices - 1) for m in submeshes
    )
    return [i for i, m in enumerate(submeshes) if not m.is_inner] if are_round else []


def _without_places(problem: StageProblem, chosen: list[int]) -> StageProblem:
    """The problem on some of its submeshes, wherever they lie."""
    costs = problem.costs
    submeshes = tuple(replace(m, starts=None, is_inner=None) for m in costs.submeshes)
    allowed = np.zeros(costs.microbatch_s.shape, np.bool_)
    allowed[:, :, chosen] = True
    if problem.allowed is not None:
        allowed &= problem.allowed
    return replace(problem, costs=replace(costs, submeshes=submeshes), allowed=allowed)
