"""Hosts that differ: a pipeline may begin at the first device of the cluster, or at the last.

Stages take devices in the cluster's order (`submeshes`), so on hosts that differ it matters which
of them come first: early stages hold more micro-batches, and the layers at the ends differ.  The
other way round is the same problem with the places of submeshes mirrored; what a stage costs does
not depend on its place.
"""

from __future__ import annotations

from dataclasses import replace

from meshwise.inter.stages.idle_devices import host_starts
from meshwise.inter.stages.stage_construction import StagePlan, build_stages_below
from meshwise.inter.stages.stage_problem import StageProblem
from meshwise.inter.stages.submeshes import StageSubmesh


def build_either_way(
    problem: StageProblem, at_most_s: float, *, num_stages: int | None = None
) -> StagePlan | None:
    """The best stages in either direction, if they take less than `at_most_s`.

    Args:
        problem: What is to be cut.
        at_most_s: Only faster plans are wanted.
        num_stages: Exactly so many; any number by default.

    Returns:
        The plan, its stages at their real places; None if none fit or none is faster.
    """
    ahead = build_stages_below(problem, at_most_s, num_stages=num_stages)
    # Equal hosts look the same from either end.
    if all(m.starts is None or not m.host_kinds for m in problem.costs.submeshes):
        return ahead
    at_most_s = at_most_s if ahead is None else ahead.total_s
    back = build_stages_below(mirrored(problem), at_most_s, num_stages=num_stages)
    if back is None:
        if ahead is None:
            return None
        # The other direction may be better by what its search may have missed.
        bound_s = min(ahead.bound_s, ahead.total_s - ahead.error_s)
        return replace(ahead, bound_s=bound_s, space=f"{ahead.space}, in either direction")
    submeshes = problem.costs.submeshes
    stages = tuple(
        replace(s, first_device=_mirror(problem, submeshes[s.submesh], s.first_device))
        for s in back.stages
    )
    bound_s = back.bound_s if ahead is None else min(ahead.bound_s, back.bound_s)
    space = f"{back.space}, in either direction"
    return replace(back, stages=stages, bound_s=bound_s, space=space)


def mirrored(problem: StageProblem) -> StageProblem:
    """The problem with the devices in the opposite order.

    A host's last devices are then its first ones, so that other places are inside it.
    """
    submeshes = problem.costs.submeshes
    starts = host_starts(problem)
    ends = (*starts[1:], problem.num_devices)
    first = {problem.num_devices - end for end in ends} if starts else set[int]()
    turned: list[StageSubmesh] = []
    for m in submeshes:
        if m.starts is None:
            turned.append(m)
            continue
        # All places of such a submesh, inside hosts and at their beginnings.
        like = [n for n in submeshes if (n.shape, n.host_kinds) == (m.shape, m.host_kinds)]
        same = [m] if m.is_inner is None else like
        places = {_mirror(problem, n, start) for n in same for start in n.starts or ()}
        if m.is_inner is not None:
            places = places - first if m.is_inner else places & first
        turned.append(replace(m, starts=tuple(sorted(places))))
    return replace(problem, costs=replace(problem.costs, submeshes=tuple(turned)))


def _mirror(problem: StageProblem, submesh: StageSubmesh, first_device: int) -> int:
    return problem.num_devices - first_device - submesh.num_devices
