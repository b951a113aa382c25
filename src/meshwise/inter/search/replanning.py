"""The stages that were chosen, planned anew as a whole where memory binds.

The search plans layers at a few prices of memory, one price for all layers of a stage, so that its
plans hold less than there is, or take longer than they must.  Here all layers of a stage are one
program with the memory of the stage as its row (`joint_run`), and different layers, or parts of
one, may hold more or less (`assignment.search.within_row`).  The row counts what is a sum of
choices; what a plan really holds, its peak included, is judged by its footprint, and moves the
limit of the row.

Only where it may pay: the plans at the other prices bound what a stage can gain.

Source: docs/decisions/0011 (the stages finally chosen are always solved again directly).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwise.assignment.problem import objective, row_weight
from meshwise.inter.cost_table.second_process import SecondProcess, second_process_of
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import RunPlan, VariantCosts
from meshwise.inter.layer_cost.joint_run import JointRun
from meshwise.inter.layer_cost.layer_network import LayerNetwork
from meshwise.inter.layer_cost.run_within_memory import run_within_memory
from meshwise.inter.layer_cost.state_costs import Entry, planned
from meshwise.inter.search.search import FoundPipeline, stage_plan
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem, StageSpan, in_flight

# A step that may become faster by less than this part of it, with so many layers to be planned
# again, is left alone: the bound is of plans that mostly do not fit, so that about half of it is
# within reach.  The time to plan grows faster than the layers, so this part grows by their square;
# of few layers it is the last number.
_WORTH, _OF_LAYERS, _LEAST_WORTH = 2e-2, 50, 1e-3
# Limits of the row that are tried, and the part of a device's memory that may stay unused.
_LIMITS, _UNUSED = 4, 0.01
# Limits that differ by less than this part of the memory count as equal.
_SAME = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tight:
    """A stage that memory may have made slower.

    Attributes:
        stage: The stage.
        layers: Its layers on its mesh.
        in_flight: Micro-batches that it holds.
        memory_bytes: Of a device.
        gain_s: Seconds of a step that it may save at most.
    """

    stage: StageSpan
    layers: tuple[LayerNetwork, ...]
    in_flight: float
    memory_bytes: float
    gain_s: float


def replanned(
    found: FoundPipeline,
    costs: VariantCosts,
    report: Callable[[str], object] = lambda _: None,
    *,
    free_share: float = 0.0,
) -> FoundPipeline:
    """The same stages, with faster plans of their layers where there are any that fit.

    Args:
        found: What the search found.
        costs: Its plans of layers; where layers were measured, nothing changes.
        report: Is told what is planned.
        free_share: Share of each device's memory that new plans leave free, 0 to 1.

    Returns:
        The better pipeline, or `found` itself where nothing is better.
    """
    if costs.times is not None:
        return found
    with second_process_of(costs) as beside:
        best = _with_faster_stages(
            found, costs, report, list(_tight(found, costs, 1 - free_share)), beside
        )
    return _on_all_devices(best, costs, report, 1 - free_share)


def _with_faster_stages(
    found: FoundPipeline,
    costs: VariantCosts,
    report: Callable[[str], object],
    todo: list[_Tight],
    beside: SecondProcess,
) -> FoundPipeline:
    """Return the pipeline with faster plans of stages that memory may have made slower.

    While this process plans one stage again, the second one finds out what the next one needs.
    """
    runs: dict[tuple[tuple[LayerNetwork, ...], float], _Run] = {}
    # One faster stage of several equal ones may not shorten the step yet.
    best = found
    while todo and _possible_s(found, todo) < best.plan.total_s * (1 - _worth(todo)):
        tight, alike = _next(todo)
        rest = [t for t in todo if t.layers != tight.layers]
        beside.learn_run(tight.layers, tight.in_flight)
        if rest:
            ahead, _ = _next(rest)
            limit = (
                ahead.memory_bytes - stage_plan(found, costs, ahead.stage).memory.temporary_bytes
            )
            beside.look_ahead(ahead.layers, ahead.in_flight, limit)
        first, last = tight.stage.first_layer, tight.stage.last_layer
        report(f"layers {first} to {last} within the memory of their stage")
        key = tight.layers, tight.in_flight
        if key not in runs:
            others = [run for (layers, _), run in runs.items() if layers == key[0]]
            runs[key] = _Run(key[0], tight.in_flight, costs, others[-1] if others else None)
        plan = runs[key].fastest(tight.memory_bytes, stage_plan(found, costs, tight.stage))
        todo.remove(tight)
        if plan is None:
            continue
        for other in alike:
            saved_s = _saved_s(found, costs, other, plan)
            if saved_s > 0:
                found = _with_plan(found, other.stage, plan)
                if other in todo:
                    todo[todo.index(other)] = replace(other, gain_s=other.gain_s - saved_s)
        todo = [t for t in todo if t.gain_s > 0]
        best = found if found.plan.total_s < best.plan.total_s else best
    return best


def _next(todo: Sequence[_Tight]) -> tuple[_Tight, list[_Tight]]:
    """Return the stage to plan again next, and all that have the same layers on the same mesh."""
    most = max(todo, key=lambda t: (t.gain_s, t.in_flight))
    alike = [t for t in todo if t.layers == most.layers]
    # What fits where most is in flight fits in all that have as much memory.
    return max(alike, key=lambda t: (t.in_flight, -t.memory_bytes)), alike


def _saved_s(found: FoundPipeline, costs: VariantCosts, tight: _Tight, plan: RunPlan) -> float:
    """Seconds of a step that a plan saves a stage; 0 where it does not fit.

    And 0 where a micro-batch takes longer: other stages may hide what is saved once a step.
    """
    count, before = found.problem.num_microbatches, stage_plan(found, costs, tight.stage)
    fits = plan.memory.peak_bytes(tight.in_flight) <= tight.memory_bytes
    if not fits or _loop_s(plan, count) > _loop_s(before, count):
        return 0.0
    return _seconds(before, count) - _seconds(plan, count)


def _on_all_devices(
    found: FoundPipeline, costs: VariantCosts, report: Callable[[str], object], used_share: float
) -> FoundPipeline:
    """One stage instead, if its plans within the memory of a device are faster.

    At the prices of the search it does not fit or takes longer; of pipelines with more stages the
    search has many to choose from, of one stage few.
    """
    other = found.whole
    if other is None:
        return found
    (stage,), problem = other.plan.stages, other.problem
    count = problem.num_microbatches
    worth_s = found.plan.total_s * (1 - _worth_of(problem.costs.num_layers))
    if other.plan.total_s >= worth_s:
        return found
    before = stage_plan(other, costs, stage)
    if _seconds(before, count) >= worth_s:
        return found
    report(f"B={count}: one stage within the memory of its devices")
    variant = other.variants[stage.submesh][stage.variant]
    networks = costs.networks(variant, count, stage.first_layer, stage.last_layer)
    assert networks is not None
    memory_bytes = used_share * problem.costs.submeshes[stage.submesh].memory_bytes
    run = _Run(networks, problem.schedule.in_flight(1, 1, count), costs)
    plan = run.fastest(memory_bytes, before, at_most_s=found.plan.total_s)
    if plan is None:
        return found
    better = _with_plan(other, stage, plan)
    if better.plan.total_s >= found.plan.total_s:
        return found
    return replace(better, tried={**found.tried, count: better.plan.total_s})


def _tight(found: FoundPipeline, costs: VariantCosts, used_share: float) -> Iterator[_Tight]:
    """The stages that a looser limit of memory could make faster."""
    problem, stages = found.problem, found.plan.stages
    count = problem.num_microbatches
    for index, stage in enumerate(stages):
        variant = found.variants[stage.submesh][stage.variant]
        flying = in_flight(problem, stages, index)
        memory_bytes = used_share * problem.costs.submeshes[stage.submesh].memory_bytes
        plan = stage_plan(found, costs, stage)
        room = memory_bytes - plan.memory.temporary_bytes
        least_s = max(
            (
                _least_s(way, costs, count, stage, flying, room)
                for way in found.variants[stage.submesh]
                if (way.mesh, way.remat) == (variant.mesh, variant.remat)
            ),
            default=0.0,
        )
        gain_s = _seconds(plan, count) - least_s
        if gain_s > 0:
            layers = costs.networks(variant, count, stage.first_layer, stage.last_layer)
            assert layers is not None
            yield _Tight(
                stage=stage,
                layers=tuple(layers),
                in_flight=flying,
                memory_bytes=memory_bytes,
                gain_s=gain_s,
            )


def _worth(todo: Sequence[_Tight]) -> float:
    """The part of a step that must be within reach."""
    return _worth_of(sum(t.stage.last_layer - t.stage.first_layer + 1 for t in todo))


def _worth_of(num_layers: int) -> float:
    return max(_WORTH * (num_layers / _OF_LAYERS) ** 2, _LEAST_WORTH)


def _least_s(
    way: Variant, costs: VariantCosts, count: int, stage: StageSpan, flying: float, room: float
) -> float:
    """Seconds of a step that a run takes at least, by what it costs at a price; 0 if unknown.

    With fewer micro-batches in flight than the price counts, each byte is worth more.
    """
    wanted = np.zeros((len(costs.source.classes),) * 2, np.bool_)
    at = stage.first_layer, stage.last_layer
    wanted[at] = True
    if not costs.has_runs(way, count, wanted):
        return 0.0
    runs = costs.runs(way, count, wanted)
    if runs is None or not np.isfinite(runs.cost_s[at]):
        return 0.0
    price = way.price.seconds_per_byte * max(1.0, way.price.in_flight / flying)
    return float(runs.cost_s[at]) - price * room


def _seconds(plan: RunPlan, count: int) -> float:
    """Of a step, what its neighbours send included."""
    return plan.once_s + _loop_s(plan, count)


def _loop_s(plan: RunPlan, count: int) -> float:
    """Seconds of all micro-batches, what neighbours send included."""
    loop_s = sum(e.loop_s for e in plan.entries)
    return loop_s + count * (plan.arriving_s + plan.returning_s)


def _possible_s(found: FoundPipeline, todo: Sequence[_Tight]) -> float:
    """Seconds of a step if all these stages were as fast as they can be."""
    problem = found.problem
    faster = problem.costs.microbatch_s.copy()
    for tight in todo:
        at = tight.stage.place
        faster[at] = max(faster[at] - tight.gain_s / problem.num_microbatches, 0.0)
    changed = replace(problem, costs=replace(problem.costs, microbatch_s=faster))
    return step_time(changed, found.plan.stages).total_s


class _Run:
    """A run of layers on one mesh with so many micro-batches in flight."""

    def __init__(
        self,
        networks: Sequence[LayerNetwork],
        in_flight: float,
        costs: VariantCosts,
        alike: _Run | None = None,
    ) -> None:
        self.joint = JointRun(networks, in_flight)
        self.within = run_within_memory(
            self.joint,
            time=costs.solver_time(networks[0].mesh),
            seed=costs.options.seed,
            like=None if alike is None else alike.within,
        )
        self._entries: dict[tuple[LayerNetwork, tuple[int, ...]], Entry] = {}

    def fastest(
        self, memory_bytes: float, before: RunPlan, at_most_s: float | None = None
    ) -> RunPlan | None:
        """The fastest plan met that fits.

        Args:
            memory_bytes: Of a device.
            before: A plan of the same layers; its temporary values are the first guess.
            at_most_s: Seconds of a step that it must stay below; those of `before` if left out.
        """
        best, best_s = None, _seconds(before, self._count) if at_most_s is None else at_most_s
        limit = memory_bytes - before.memory.temporary_bytes
        seen: set[tuple[int, ...]] = set()
        for _ in range(_LIMITS):
            found = self.within.cheapest(limit)
            if not found.choice or found.choice in seen:
                break
            seen.add(found.choice)
            plan = self._plan(found.choice)
            unused = memory_bytes - plan.memory.peak_bytes(self.joint.in_flight)
            seconds = _seconds(plan, self._count)
            if unused >= 0 and seconds < best_s:
                best, best_s = plan, seconds
            if 0 <= unused <= _UNUSED * memory_bytes:
                break
            # What the row does not know of is taken to be alike in the next plan.
            before_limit, limit = limit, row_weight(self.within.row, found.choice) + unused
            if abs(limit - before_limit) <= _SAME * memory_bytes:
                break
        return best

    @property
    def _count(self) -> int:
        return self.joint.layers[0].piece.num_microbatches

    def _plan(self, choice: tuple[int, ...]) -> RunPlan:
        layers, states = self.joint.layers, self.joint.states(choice)
        return RunPlan(
            entries=tuple(
                self._entry(layer, self.joint.of_layer(k, choice)) for k, layer in enumerate(layers)
            ),
            enters=layers[0].entering.layouts[states[0]],
            leaves=layers[-1].leaving.layouts[states[-1]],
            arriving_s=float(layers[0].arriving_s[states[0]]),
            returning_s=float(layers[-1].returning_s[states[-1]]),
        )

    def _entry(self, layer: LayerNetwork, choice: tuple[int, ...]) -> Entry:
        """Equal layers with equal choices share one plan."""
        key = (layer, choice)
        if key not in self._entries:
            self._entries[key] = planned(layer, choice, objective(layer.problem, choice))
        return self._entries[key]


def _with_plan(found: FoundPipeline, stage: StageSpan, plan: RunPlan) -> FoundPipeline:
    """What was found, with another plan of one of its stages."""
    problem = _with_costs(found.problem, stage, plan)
    time = step_time(problem, found.plan.stages)
    return replace(
        found,
        problem=problem,
        plan=replace(found.plan, time=time, bound_s=min(found.plan.bound_s, time.total_s)),
        replanned={**found.replanned, stage: plan},
    )


def _with_costs(problem: StageProblem, stage: StageSpan, plan: RunPlan) -> StageProblem:
    memory = plan.memory
    values = {
        "microbatch_s": sum(e.loop_s for e in plan.entries) / problem.num_microbatches,
        "gather_s": plan.arriving_s + plan.returning_s,
        "once_s": plan.once_s,
        "resident_bytes": memory.resident_bytes,
        "microbatch_bytes": memory.microbatch_bytes,
        "temporary_bytes": memory.temporary_bytes,
    }
    columns = {name: array.copy() for name, array in problem.costs.columns().items()}
    for name, value in values.items():
        if name in columns:
            columns[name][stage.place] = value
    return replace(problem, costs=StageCosts(submeshes=problem.costs.submeshes, **columns))
