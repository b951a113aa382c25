"""The joint search: stages, submeshes, logical meshes, micro-batches, schedule, rematerialisation.

For each number of micro-batches B the layers are planned on every submesh in each variant
(`search_space`), their costs composed, and for each schedule the best stages chosen.

Most of that is only bounded.  Of all B and schedules the one whose best stages promise most is
looked at more closely, until those stages are planned (`lazy_table`): then no other can be better.

Source: Alpa section 5; docs/decisions/0012.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError, TraceError
from meshwise.inter.cost_table.second_process import SecondProcess, second_process_of
from meshwise.inter.cost_table.variant import BoundsKey, Variant
from meshwise.inter.cost_table.variant_costs import LayerSource, RunPlan, VariantCosts
from meshwise.inter.search.findings import Findings
from meshwise.inter.search.lazy_table import LazyTable
from meshwise.inter.search.microbatch_counts import Group, bounds_of, groups, most_stages
from meshwise.inter.search.search_space import (
    DEAREST,
    SearchOptions,
    asked_submeshes,
    guessed_s,
    stage_problem,
    variants_of,
)
from meshwise.inter.search.stage_pins import masked
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.placed_construction import build_placed
from meshwise.inter.stages.single_stage import seconds_at_the_limit
from meshwise.inter.stages.stage_construction import StagePlan
from meshwise.inter.stages.stage_problem import StageProblem, StageSpan, spare_share
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.inter.stages.transfers import transfer_s
from meshwise.kernels.arrays import Floats
from meshwise.plan.decision import GraphDecision
from meshwise.schedules.pipeline_schedule import PipelineSchedule

# Chooses stages in place of the stage construction.
Rule = Callable[[StageProblem], StagePlan]

# Stages of steps that take so much more than the best known bound are planned only when asked for.
_SLACK = 1.1
# Bounds on several hosts are raised until a step takes this many times the best known bound.
_RAISED = 1.5
# Steps are left out as far only if their fill has at most this share: else fewer micro-batches may
# win.
_SMALL_FILL = 0.1
# Between two prices steps take less than on the line between them: so much above, look.
_NEAR = 1.01


class NothingFasterError(InfeasibleError):
    """No pipeline that fits is faster than one that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPipeline:
    """The best pipeline.

    Attributes:
        plan: Its stages.
        problem: What they were chosen from.
        kinds: Kinds of submeshes, as the problem counts them.
        variants: For each kind the ways to plan on it, as the problem counts them.
        tried: Seconds of the best step for each number of micro-batches; infinite where nothing
            fits that is faster than the best.
        replanned: Plans of stages that are better than those of their variants (`replan`).
        is_tight: Whether plans that hold as little as they can were among those that were searched.
        peak_bytes: What the fullest mesh of a pipeline with several stages a mesh holds, as the
            search counts it, of one device; None where each mesh has one stage.
        whole: One stage on all devices that might be faster if it fitted; what is known of its
            costs may be bounds.  None if there is no such stage.
    """

    plan: StagePlan
    problem: StageProblem
    kinds: tuple[SubmeshKind, ...]
    variants: tuple[tuple[Variant, ...], ...]
    tried: dict[int, float]
    replanned: dict[StageSpan, RunPlan] = field(default_factory=dict[StageSpan, RunPlan])
    is_tight: bool = False
    peak_bytes: float | None = None
    whole: FoundPipeline | None = None

    @property
    def spare_share(self) -> float:
        """The share of the memory of devices that may be left free while the stages fit."""
        if self.peak_bytes is None:
            return spare_share(self.problem, self.plan.stages)
        (submesh,) = self.problem.costs.submeshes
        return 1.0 - self.peak_bytes / (submesh.memory_bytes + submesh.reserved_bytes)


def search(
    source: LayerSource,
    cluster: ClusterSpec,
    options: SearchOptions,
    report: Callable[[str], object] = lambda _: None,
    costs: VariantCosts | None = None,
    rule: Rule | None = None,
    below_s: float = math.inf,
    far_s: float = math.inf,
    down_to: int | None = None,
    findings: Findings | None = None,
) -> tuple[FoundPipeline, VariantCosts]:
    """Find the fastest pipeline.

    Args:
        source: The layers.
        cluster: Where they run.
        options: What is searched.
        report: Is told of progress.
        costs: Plans of these layers from another search, to be added to.
        rule: Chooses the stages in place of the stage construction; it must take the cheapest of
            what it allows, since costs are bounds until they are used.
        below_s: Seconds of a simulated step that is to be beaten; stages that alone take as long
            are left out.
        far_s: Seconds by the formula from which on a step is far from what is to be beaten.
        down_to: The number of micro-batches of the step to be beaten.  The search goes down to it,
            and one group below, also where more micro-batches give nothing faster.
        findings: Those of other searches with these costs, to be added to.

    Raises:
        NothingFasterError: nothing is left of what fits, and there is a step to be beaten.
        InfeasibleError: nothing fits.
        PlanError: a number of micro-batches does not divide the batch.
        TraceError: the step does not separate into micro-batches that were asked for, or into any.
    """
    costs = costs or VariantCosts(source, options.intra)
    with second_process_of(costs) as beside:
        found = _Search(
            cluster=cluster,
            options=options,
            report=report,
            costs=costs,
            beside=beside,
            rule=rule,
            below_s=below_s,
            far_s=far_s,
            down_to=math.inf if down_to is None else down_to,
            findings=findings or Findings(costs, cluster.num_devices),
        ).run()
    return found, costs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """What is known for one number of micro-batches.

    Attributes:
        count: B.
        bounded: A number of micro-batches that divides B, whose bounds serve first.
        table: Costs of stages.
        transfers: Between them.
    """

    count: int
    bounded: int
    table: LazyTable
    transfers: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """The best stages for one number of micro-batches and one schedule, as far as is known.

    Attributes:
        known: Costs of stages.
        num_changes: How often these had changed when the stages were chosen.
        schedule: The schedule.
        plan: The stages.
    """

    known: _Known
    num_changes: int
    schedule: PipelineSchedule
    plan: StagePlan


@dataclass(slots=True, kw_only=True)
class _Search:
    """One search.

    Attributes:
        submeshes: Kinds of submeshes for the stage construction.
        kinds: The same for costs.
        variants: For each of them the ways to plan on it.
        below_s, far_s, findings: As `search` has them.
        down_to: Likewise; infinite if there is none.
        known: For each number of micro-batches that was tried.
        tried: As `Found.tried`.
        refused: Why the step does not separate, where it does not.
        looked: Where layers were looked at closely, for steps of how many seconds at most.
    """

    cluster: ClusterSpec
    options: SearchOptions
    report: Callable[[str], object]
    costs: VariantCosts
    beside: SecondProcess
    rule: Rule | None
    below_s: float
    far_s: float
    down_to: float
    findings: Findings
    submeshes: list[StageSubmesh] = field(init=False)
    kinds: list[SubmeshKind] = field(init=False)
    variants: list[tuple[Variant, ...]] = field(init=False)
    known: list[_Known] = field(default_factory=list[_Known])
    tried: dict[int, float] = field(default_factory=dict[int, float])
    refused: TraceError | None = None
    looked: dict[BoundsKey, float] = field(default_factory=dict[BoundsKey, float])

    def __post_init__(self) -> None:
        self.kinds, self.submeshes = asked_submeshes(self.cluster, self.options)
        second = guessed_s(self.kinds, self.cluster, self.options)
        self.variants = [variants_of(kind, self.options, second) for kind in self.kinds]

    def run(self) -> FoundPipeline:
        """Search groups of numbers of micro-batches, downwards while the fewest are the best.

        Where nothing of a group fits, larger micro-batches rarely do.
        """
        best: _Candidate | None = None
        lowest = 0
        num_stages = most_stages(self.cluster.num_devices, len(self.costs.source.classes))
        for group in groups(self.options, num_stages):
            if self._stops_at(lowest, best):
                break
            lowest = min(group.counts)
            best = self._best_of(group, math.inf if best is None else best.plan.total_s) or best
        if best is None:
            raise self._nothing()
        found = FoundPipeline(
            plan=best.plan,
            problem=self._problem(best.known, best.schedule),
            kinds=tuple(self.kinds),
            variants=tuple(self.variants),
            tried=self.tried,
            is_tight=DEAREST in self.options.prices,
        )
        return replace(found, whole=self._whole(best, found))

    def _stops_at(self, lowest: int, best: _Candidate | None) -> bool:
        """Whether fewer micro-batches than the lowest number so far are not searched.

        Where a step is to be beaten, one group below its number of micro-batches is searched, too.
        """
        if best is not None and best.plan.total_s < self.below_s:
            return best.known.count != lowest
        if best is None and (self.options.every_group or not self._any_separates()):
            return False
        return lowest < self.down_to

    def _whole(self, best: _Candidate, found: FoundPipeline) -> FoundPipeline | None:
        """The stage on all devices that promises most if its memory could be met between prices."""
        if self.rule is not None or self.options.pins or self.options.num_stages not in (None, 1):
            return None
        schedule = self.options.schedules[0]
        promising: list[tuple[float, int, _Known, StageSpan]] = []
        for known in self.known:
            costs = known.table.costs()
            in_flight = schedule.in_flight(1, 1, known.count)
            for m, kind in enumerate(self.kinds):
                if kind.num_devices != self.cluster.num_devices:
                    continue
                # From the lowest price of memory to the highest.
                ways: dict[object, list[int]] = {}
                for v, way in enumerate(self.variants[m]):
                    ways.setdefault((way.mesh, way.remat), []).append(v)
                for versions in ways.values():
                    total_s = seconds_at_the_limit(
                        costs, m, (versions[0], versions[-1]), known.count, in_flight
                    )
                    if total_s < _NEAR * best.plan.total_s:
                        stage = StageSpan(
                            first_layer=0,
                            last_layer=costs.num_layers - 1,
                            submesh=m,
                            variant=versions[0],
                            first_device=0,
                        )
                        promising.append((total_s, len(promising), known, stage))
        if not promising:
            return None
        _, _, known, stage = min(promising)
        problem = self._problem(known, schedule)
        plan = replace(
            best.plan,
            stages=(stage,),
            time=step_time(problem, (stage,)),
        )
        return replace(found, plan=plan, problem=problem)

    def _best_of(self, group: Group, cutoff: float) -> _Candidate | None:
        """The fastest step for some numbers of micro-batches; None if none takes less."""
        waiting: list[tuple[float, int, _Candidate]] = []

        def add(number: int, known: _Known, schedule: PipelineSchedule) -> None:
            candidate = self._candidate(known, schedule, cutoff)
            if candidate is not None:
                heapq.heappush(waiting, (candidate.plan.total_s, number, candidate))

        numbers = itertools.count()
        for count in group.counts:
            self.tried[count] = math.inf
            shares = self.options.shares_bounds
            known = self._known(count, bounds_of(count, group.sharing) if shares else count)
            if known is not None:
                for schedule in self.options.schedules:
                    add(next(numbers), known, schedule)
        while waiting:
            total_s, number, best = heapq.heappop(waiting)
            if not self._separates(best.known):
                continue
            if self._looks_closely(best):
                add(number, best.known, best.schedule)
                continue
            table = best.known.table
            at_most_s = min(cutoff, self.below_s, _SLACK * total_s)
            # Another schedule may have made more known.
            if (
                best.num_changes < table.num_changes
                or table.plan(best.plan.stages, self.cluster.num_devices, at_most_s)
                or table.correct(best.plan.stages)
            ):
                add(number, best.known, best.schedule)
                continue
            self.tried[best.known.count] = total_s
            self.report(f"B={best.known.count}: {total_s:.4g} s a step")
            return best
        return None

    def _looks_closely(self, candidate: _Candidate) -> bool:
        """Look at layers on several hosts, whose bounds are far off; whether a bound rises.

        All layers need not be planned there then: few of the stages that bounds promise stay.
        """
        if self.costs.times is not None:
            return False
        known, stages = candidate.known, candidate.plan.stages
        enough_s = min(self.below_s, _RAISED * candidate.plan.total_s)
        rises = False
        for stage in stages:
            way = self.variants[stage.submesh][stage.variant]
            key = BoundsKey(way.mesh, way.remat, known.count)
            looked_s = self.looked.get(key, 0.0)
            if self.kinds[stage.submesh].num_hosts == 1 or _SLACK * looked_s >= enough_s:
                continue
            self.looked[key] = enough_s
            base = "none" if "none" in self.options.remats else way.remat
            rough = BoundsKey(way.mesh, base, known.bounded)
            run = slice(stage.first_layer, stage.last_layer + 1)
            each = self.findings.closer.layers_s(key, rough, run, enough_s)
            rises |= known.table.raise_bounds(way, _run_sums(each), stage)
        return rises

    def _known(self, count: int, bounded: int) -> _Known | None:
        """Bounds for a number of micro-batches; None if the step does not separate."""
        try:
            table = self.findings.table(
                self.submeshes,
                self.variants,
                count,
                bounds_of=bounded,
                is_cautious=not self.options.bounds_temporary,
                beside=self.beside,
                report=lambda text: self.report(f"B={count}: {text}"),
            )
        except TraceError as error:
            self._refuse(count, error)
            return None
        inner = [m.is_inner for m in self.submeshes]
        hosts = self.cluster.num_hosts
        transfers = transfer_s(self.costs.source, self.kinds, count, inner, num_hosts=hosts)
        known = _Known(count=count, bounded=bounded, table=table, transfers=transfers)
        self.known.append(known)
        return known

    def _separates(self, known: _Known) -> bool:
        """Whether the step separates into so many micro-batches, of which bounds may not tell."""
        if known not in self.known:
            return False
        try:
            self.costs.trace(self.options.remats[0], known.count)
        except TraceError as error:
            self._refuse(known.count, error)
            self.known.remove(known)
            return False
        return True

    def _any_separates(self) -> bool:
        return any(self._separates(known) for known in tuple(self.known))

    def _refuse(self, count: int, error: TraceError) -> None:
        # Too few rows for what must stay together, such as a group of experts.
        if self.options.num_microbatches is not None:
            raise error
        self.refused = error
        self.report(f"B={count}: the step does not separate")

    def _problem(self, known: _Known, schedule: PipelineSchedule) -> StageProblem:
        costs = masked(known.table.costs(), self.options.pins, self.kinds, self.variants)
        problem = stage_problem(
            costs, self.cluster, self.options, known.count, schedule, known.transfers
        )
        if math.isinf(self.below_s):
            return problem
        return replace(problem, allowed=known.table.least_s() < self.below_s)

    def _candidate(
        self, known: _Known, schedule: PipelineSchedule, cutoff: float
    ) -> _Candidate | None:
        """The best stages, or what the rule chooses; None if nothing fits that is faster."""
        problem = self._problem(known, schedule)
        if self.rule is None:
            plan = build_placed(problem, self.cluster, cutoff, num_stages=self.options.num_stages)
        else:
            try:
                plan = self.rule(problem)
            except InfeasibleError:
                return None
        if plan is None or plan.total_s >= cutoff or self._is_far(plan, known.count):
            return None
        return _Candidate(
            known=known,
            num_changes=known.table.num_changes,
            schedule=schedule,
            plan=plan,
        )

    def _is_far(self, plan: StagePlan, count: int) -> bool:
        """Whether the best stages by the formula are far from what is to be beaten.

        A simulated step may take less than the formula says, since some of the fill hides.  But
        the slowest of n stages alone takes at least B / (B + n - 1) of that time, transfers
        apart.  That no stages which the formula puts behind these are faster is not proved.
        """
        fill = len(plan.stages) - 1
        if fill > _SMALL_FILL * count:
            return False
        return plan.total_s * count / (count + fill) >= self.far_s

    def _nothing(self) -> InfeasibleError | TraceError:
        """Why there is no pipeline."""
        if math.isfinite(self.below_s):
            return NothingFasterError("no pipeline that fits is faster than the fastest so far")
        if self.rule is not None:
            return InfeasibleError("no stages that follow the rule fit")
        if not self._any_separates():
            return self.refused or InfeasibleError("no pipeline fits")
        return InfeasibleError("no pipeline fits into the memory of the devices")


def _run_sums(each: Floats) -> Floats:
    """For (first, last) the sum from first to last."""
    total = np.concatenate([[0.0], np.cumsum(each)])
    return total[None, 1:] - total[:-1, None]


def stage_decisions(
    found: FoundPipeline, costs: VariantCosts
) -> tuple[tuple[GraphDecision, ...], ...]:
    """Return for each stage the plans of its layers.

    Args:
        found: What the search found.
        costs: Its plans of layers.
    """
    return tuple(
        tuple(plan.decision for plan in stage_plan(found, costs, stage).entries)
        for stage in found.plan.stages
    )


def stage_plan(found: FoundPipeline, costs: VariantCosts, stage: StageSpan) -> RunPlan:
    """Return the plans of the layers of a stage.

    Args:
        found: What the search found.
        costs: Its plans of layers.
        stage: One of its stages.
    """
    if stage in found.replanned:
        return found.replanned[stage]
    variant = found.variants[stage.submesh][stage.variant]
    count = found.problem.num_microbatches
    return costs.run_plan(variant, count, stage.first_layer, stage.last_layer)
