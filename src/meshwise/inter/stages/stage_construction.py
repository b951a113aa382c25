"""Stage construction: which layers form a stage, on which submesh, in which variant.

The objective and the memory constraint are in `objective`.  Bottlenecks (the steady state, what is
done once) become limits, over which `bottleneck_search` goes; within limits, the least sum of
fills and transfers is a recurrence over (stages to the end, layer, devices):

    F(0, L, D) = 0
    F(s, k, p) = min over k <= j < L, submesh m, variant v, of
                 fill(k..j, m, v) + x(j, m, m') + F(s - 1, j + 1, p + |m|)

where m' is the first submesh of the rest, the load and once of (k..j, m, v) are within the limits,
and memory allows s stages to the end.  (`least_fill`; s counts from the end as in eq. 3, since what
is in flight does.)

The objective is whole; `as_alpa` gives the paper's problem.

Source: Alpa eqs. 2 to 5; docs/decisions/0010.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwise.inter.stages.bottleneck_search import FoundStages, SearchResult, search_boxes
from meshwise.inter.stages.least_fill import least_fill
from meshwise.inter.stages.objective import StepTime, step_time
from meshwise.inter.stages.stage_options import stage_options
from meshwise.inter.stages.stage_problem import StageProblem, StageSpan
from meshwise.units import counted

# Source: Alpa section 5.2.
EPSILON_S = 1e-6
# On more devices than this stages that are too slow by themselves are left out at once: then all
# sizes have a large divisor, by which the recurrence counts devices.  On fewer it would only change
# which of several equal solutions is found.
MANY = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Stages, and what is proved of them.

    Attributes:
        stages: In the order of the pipeline.
        time: T and its parts.
        bound_s: No choice of stages in `space` takes less.
        error_s: What the search may have missed at most, from epsilon; `bound_s` is often closer.
        space: What was searched, in words.
    """

    stages: tuple[StageSpan, ...]
    time: StepTime
    bound_s: float
    error_s: float
    space: str

    @property
    def total_s(self) -> float:
        """T."""
        return self.time.total_s


def build_stages_below(
    problem: StageProblem,
    at_most_s: float,
    *,
    num_stages: int | None = None,
    epsilon_s: float = EPSILON_S,
) -> StagePlan | None:
    """The best stages, if they take less than `at_most_s`; None if not, or if none fit.

    A search over schedules and numbers of micro-batches is over sooner where a good plan is known.

    Args:
        problem: Layers, submeshes, costs, micro-batches, schedule; devices may stay unused unless
            it says otherwise.
        at_most_s: Infinite where no plan is known.
        num_stages: Exactly so many; any number by default.
        epsilon_s: Limits of a micro-batch's time that are closer than this are one; the result is
            at most B times this above the optimum.
    """
    error_s = problem.num_microbatches * epsilon_s
    best, results = None, list[SearchResult]()
    for count in _stage_counts(problem, num_stages):
        at_most = at_most_s if best is None else best.total_s
        results.append(_search(problem, count, error_s, at_most))
        best = results[-1].best or best
    if best is None:
        return None
    return StagePlan(
        stages=best.stages,
        time=step_time(problem, best.stages),
        bound_s=min(r.bound_s for r in results),
        error_s=error_s,
        space=_space(problem, num_stages),
    )


def feasible_stages(problem: StageProblem, num_stages: int | None = None) -> tuple[StageSpan, ...]:
    """Stages of least fill, whatever their bottleneck; none if no stages fit."""
    for count in _stage_counts(problem, num_stages):
        options = stage_options(problem, count)
        found = least_fill(problem, options, math.inf, math.inf, math.inf)
        if found is not None:
            return found.stages
    return ()


def _stage_counts(problem: StageProblem, num_stages: int | None) -> list[int]:
    """Numbers of stages to search one by one; 0 stands for all at once."""
    schedule, most = problem.schedule, min(problem.costs.num_layers, problem.num_devices)
    if num_stages is not None:
        allowed = 1 <= num_stages <= most and schedule.allows(num_stages, problem.num_microbatches)
        return [num_stages] if allowed else []
    if not schedule.depends_on_num_stages:
        return [0]
    return [n for n in range(1, most + 1) if schedule.allows(n, problem.num_microbatches)]


def _search(problem: StageProblem, num_stages: int, error_s: float, at_most: float) -> SearchResult:
    """The best stages if they take less than `at_most`."""
    limit_s = at_most if problem.num_devices > MANY else math.inf
    options = stage_options(problem, num_stages, limit_s)

    def evaluate(load: float, once: float, cutoff: float) -> FoundStages | None:
        return least_fill(problem, options, load, once, cutoff)

    if not len(options.where):
        return SearchResult(best=None, bound_s=at_most)
    return search_boxes(evaluate, options.box(), error_s, at_most)


def _space(problem: StageProblem, num_stages: int | None) -> str:
    costs = problem.costs
    shapes = ", ".join(dict.fromkeys(str(m) for m in costs.submeshes))
    stages = "any number of stages" if num_stages is None else counted(num_stages, "stage")
    devices = "all" if problem.use_all_devices else "at most"
    return (
        f"all ways to divide {counted(costs.num_layers, 'layer')}, in order, into {stages} on "
        f"submeshes {shapes} (hosts, devices of each), which take {devices} "
        f"{counted(problem.num_devices, 'device')}; "
        f"{counted(costs.microbatch_s.shape[3], 'variant')} at most for each stage; "
        f"{counted(problem.num_microbatches, 'micro-batch')}, schedule {problem.schedule.choice}"
    )
