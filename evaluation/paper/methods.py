"""Every method that the figures compare: layers, cluster and options in, an answer out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from evaluation.baselines.deciders import DECIDERS, Decider
from evaluation.baselines.megatron import megatron_lm
from evaluation.baselines.result import BaselineResult
from evaluation.paper.ablations import equal_layer, equal_operator
from evaluation.paper.result import Answer, StageRow
from evaluation.paper.ways import seconds_by_way
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.finishing import finished
from meshwise.inter.search.search import FoundPipeline, Rule, search
from meshwise.inter.search.search_space import SearchOptions
from meshwise.plan.plan import Plan
from meshwise.planner.one_search import with_faster_stages
from meshwise.planner.room import with_memory_free
from meshwise.simulate.timeline import Timeline
from meshwise.trace.layers.layering import Layering

OURS, INTRA = "Meshwise", "intra-op only"
EQUAL_LAYER, EQUAL_OPERATOR = "equal layer", "equal operator"
MEGATRON_NARROW = "Megatron-LM (tp to 8)"
# As many as the paper found for Wide-ResNet on 16 GPUs.
THREE_STAGES = "Meshwise (3 stages)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be planned.

    Attributes:
        layers: The layers.
        cluster: Where they run.
        options: What may be searched.
        costs: Plans of its layers, shared by the methods that plan them freely.
    """

    layers: Layering
    cluster: ClusterSpec
    options: SearchOptions
    costs: VariantCosts


Report = Callable[[str], object]
Method = Callable[[Work, Report], Answer]


def _ours(work: Work, report: Report) -> Answer:
    return _searched(work, work.options, report)


def _stages(count: int) -> Method:
    """Return the search with so many stages; with one, layers are planned as freely as in ours."""

    def method(work: Work, report: Report) -> Answer:
        return _searched(work, dataclasses.replace(work.options, num_stages=count), report)

    return method


def _searched(work: Work, options: SearchOptions, report: Report) -> Answer:
    try:
        found, plan, timeline = _with_room(work, options, report)
    except InfeasibleError as error:
        return Answer.nothing(str(error))
    ways = seconds_by_way(plan, found, work.costs)
    return dataclasses.replace(_answer(plan, timeline), by_way=ways)


def _with_room(
    work: Work, options: SearchOptions, report: Report, rule: Rule | None = None
) -> _Made:
    """Search, with so much memory left free that there is room for what the search does not count.

    Raises:
        InfeasibleError: nothing fits.
    """

    def planned(options: SearchOptions) -> _Made:
        found, _ = search(work.layers, work.cluster, options, report, work.costs, rule)
        return with_faster_stages(found, work.costs, partial(_finished, work), report)

    return with_memory_free(options, planned, report)


class _Made(NamedTuple):
    """A pipeline, its plan, and a simulated step."""

    found: FoundPipeline
    plan: Plan
    timeline: Timeline


def _finished(work: Work, found: FoundPipeline) -> _Made:
    plan, timeline = finished(
        work.layers,
        work.cluster,
        found,
        work.costs,
        batch_size=work.options.batch_size,
        step_flop=work.options.step_flop,
        memory_bytes=work.options.memory_bytes,
        tied=work.layers.tied_names(),
    )
    return _Made(found, plan, timeline)


def _answer(plan: Plan, timeline: Timeline) -> Answer:
    stages = tuple(
        StageRow(
            first_layer=s.first_layer,
            last_layer=s.last_layer,
            submesh=s.submesh,
            mesh=s.mesh.sizes,
            remat=s.remat,
            microbatch_s=s.forward_s + s.backward_s,
            once_s=s.once_s,
        )
        for s in plan.stages
    )
    return Answer(
        step_time_s=timeline.step_time_s,
        peak_bytes=max(timeline.peak_bytes),
        num_microbatches=plan.num_microbatches,
        chosen=stages_text(stages),
        stages=stages,
        text=plan.explain(),
    )


def stages_text(stages: Sequence[StageRow]) -> str:
    """As `2 x (1,2) as 2x1`: runs of stages on equal meshes."""
    runs: list[tuple[str, int]] = []
    for s in stages:
        word = f"({s.submesh[0]},{s.submesh[1]}) as {'x'.join(map(str, s.mesh))}"
        if runs and runs[-1][0] == word:
            runs[-1] = (word, runs[-1][1] + 1)
        else:
            runs.append((word, 1))
    return ", ".join(f"{count} x {word}" for word, count in runs)


def _decided(decide: Decider) -> Method:
    def method(work: Work, report: Report) -> Answer:
        found = decide(work.layers, work.cluster, work.options, report)
        return _of_baseline(found) if found.fits else Answer.nothing(found.why)

    return method


def _of_baseline(found: BaselineResult) -> Answer:
    return Answer(
        step_time_s=found.step_time_s,
        peak_bytes=found.peak_bytes,
        num_microbatches=found.num_microbatches,
        chosen=found.chosen,
        stages=tuple(
            StageRow(
                first_layer=s.first_layer,
                last_layer=s.last_layer,
                submesh=s.submesh,
                mesh=s.mesh,
                remat=s.remat,
            )
            for s in found.stages
        ),
    )


def _with_rule(rule: Rule) -> Method:
    """Return the same search, but a rule says where stages begin."""

    def method(work: Work, report: Report) -> Answer:
        try:
            _, plan, timeline = _with_room(work, work.options, report, rule)
        except InfeasibleError as error:
            return Answer.nothing(str(error))
        return _answer(plan, timeline)

    return method


def _equal_operators(work: Work, report: Report) -> Answer:
    counts = [last - first + 1 for first, last in work.layers.ranges]
    return _with_rule(lambda problem: equal_operator(problem, counts))(work, report)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        OURS: _ours,
        **{name: _decided(decide) for name, decide in DECIDERS.items()},
        INTRA: _stages(1),
        THREE_STAGES: _stages(3),
        MEGATRON_NARROW: _decided(partial(megatron_lm, largest_tensor_parallel=8)),
        EQUAL_LAYER: _with_rule(equal_layer),
        EQUAL_OPERATOR: _equal_operators,
    }
)


def is_above(ours: Answer, other: Answer, tolerance: float = 1e-6) -> bool:
    """Return whether ours takes longer than a plan of another method that fits."""
    return math.isfinite(other.step_time_s) and ours.step_time_s > other.step_time_s * (
        1 + tolerance
    )
