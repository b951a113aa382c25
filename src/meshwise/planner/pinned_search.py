"""The search for a pipeline that keeps to pins, or names those that contradict each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.finishing import NamedLayers
from meshwise.inter.search.least_memory import LeastMemory, least_memory, too_little_memory
from meshwise.inter.search.microbatch_counts import microbatch_counts
from meshwise.inter.search.pin_conflicts import (
    check_stages,
    fits,
    fits_without_costs,
    smallest_conflict,
)
from meshwise.inter.search.remedies import least_memory_counts, remedies
from meshwise.inter.search.search import FoundPipeline, NothingFasterError, search
from meshwise.inter.search.search_space import DEAREST, SearchOptions, submeshes_of
from meshwise.planner.pinned_layers import PinnedCosts
from meshwise.planner.shared_plans import SharedPlans
from meshwise.request.pipeline_pins import PipelinePin, layouts_of, resolved, with_pins
from meshwise.simulate.simulated_plan import SimulatedPlan
from meshwise.trace.layers.layering import Layering
from meshwise.units import counted

# Of what is to be beaten; what takes longer by the formula hardly ever becomes faster.
HOPELESS = 1.02
# The largest share of the memory that is left free for what the search does not count.
MOST_RESERVED = 0.5
# If the least memory that was found is more than there is by less than this factor, it is searched.
_NEARLY = 1.1


def always() -> bool:
    """Return True: remedies are looked for."""
    return True


def never() -> bool:
    """Return False: no remedies are looked for."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSearch:
    """What is searched: the fastest pipeline for given layers.

    Attributes:
        layers: The layers.
        cluster: Where they run.
        options: What is searched, pins apart.
        report: Is told of progress.
        pins: What is fixed; if any, also the numbers of stages and of micro-batches.
        plans: Those of other searches, to be added to.
        cutoff_s: Seconds of a simulated step; what cannot take less need not be found.
        far_s: Seconds by the formula from which on a step is far from that.
        down_to: The number of micro-batches of the step to be beaten; None: there is no such step.
        seeks_remedies: Whether to say what would help where nothing fits, which takes long; asked
            when nothing does.
        most_reserved: Share of the memory that is left free at most for what is not counted.
        beats_tight: Whether the step to be beaten comes from a search among plans that hold as
            little as they can; then such plans are searched too if no other is faster.
        looks_further: Whether plans that hold as little as they can are searched where nothing
            else fits.
        simulated: What was simulated, to be added to.
    """

    layers: Layering
    cluster: ClusterSpec
    options: SearchOptions
    report: Callable[[str], object]
    pins: Sequence[PipelinePin]
    plans: SharedPlans
    cutoff_s: float = math.inf
    far_s: float = math.inf
    down_to: int | None = None
    seeks_remedies: Callable[[], bool] = always
    most_reserved: float = MOST_RESERVED
    beats_tight: bool = False
    looks_further: bool = True
    simulated: list[SimulatedPlan] = field(default_factory=list[SimulatedPlan])


def pinned_search(asked: PipelineSearch) -> tuple[NamedLayers, FoundPipeline, VariantCosts]:
    """Find the fastest pipeline that keeps to pins.

    Args:
        asked: What is searched.

    Returns:
        The layers as they were planned, the pipeline, plans of layers.

    Raises:
        PlanError: pins contradict each other, the cluster or its memory; they are named.
        PinError: a pin of a layout names nothing.
        NothingFasterError: nothing that fits takes less than the cutoff.
        InfeasibleError: nothing fits, with or without pins.
    """
    if not asked.pins:
        return _free_search(asked)
    layers, cluster = asked.layers, asked.cluster
    # What is asked for beside the pins is among them: it may contradict others.
    options = replace(asked.options, num_stages=None, num_microbatches=None)
    count = len(layers.classes)
    pins = resolved(asked.pins, count)
    values = microbatch_counts(options)

    def could_be(some: Sequence[PipelinePin]) -> bool:
        wanted = with_pins(options, some)
        return wanted is not None and fits_without_costs(cluster, wanted, count, values[0])

    if not could_be(pins) and (conflict := smallest_conflict(pins, could_be)):
        raise PlanError(_contradiction(conflict, cluster, options, count))
    wanted = with_pins(options, pins)
    assert wanted is not None
    source, costs = asked.plans.of(layouts_of(pins))
    try:
        found, costs = _search(asked, source, wanted, costs)
    except InfeasibleError as error:
        if not asked.seeks_remedies():
            raise
        asked.report("looking for the pins that leave no plan")
        conflict = _conflict(asked, _least_held(options), pins, costs)
        if not conflict:
            raise
        raise PlanError(_too_much(conflict, error, costs)) from error
    return source, found, costs


def _free_search(asked: PipelineSearch) -> tuple[NamedLayers, FoundPipeline, VariantCosts]:
    """Find the fastest pipeline without pins; where nothing fits, name what would help."""
    layers, cluster, options = asked.layers, asked.cluster, asked.options
    _, costs = asked.plans.of({})
    check_stages(cluster, options, len(layers.classes))
    try:
        found, _ = _search(asked, layers, options, costs)
    except NothingFasterError:
        raise
    except InfeasibleError as error:
        least = _least_held(options)
        helps = remedies(cluster, least, costs, asked.report) if asked.seeks_remedies() else ()
        if not helps:
            raise
        raise InfeasibleError(
            f"{error}. Planned: without more memory there is a pipeline with "
            f"{' or with '.join(helps)}"
        ) from error
    return layers, found, costs


def _search(
    asked: PipelineSearch, source: NamedLayers, options: SearchOptions, costs: VariantCosts
) -> tuple[FoundPipeline, VariantCosts]:
    """Search; where nothing fits, search once more among plans that hold as little as they can.

    Raises:
        NothingFasterError: nothing that fits is faster than a step that is to be beaten; plans that
            hold as little as they can are slow, and looked at only if that step is one of them.
        InfeasibleError: nothing fits; it says with how much memory something would, unless a
            schedule takes room that the search does not know of.
    """
    cluster, report = asked.cluster, asked.report
    findings = asked.plans.findings(costs, cluster.num_devices)
    find = partial(
        search,
        source,
        cluster,
        report=report,
        costs=costs,
        below_s=asked.cutoff_s,
        far_s=asked.far_s,
        down_to=asked.down_to,
        findings=findings,
    )
    tight = replace(_least_held(options), shares_bounds=False)
    try:
        return find(replace(options, every_group=False))
    except NothingFasterError:
        if not asked.beats_tight:
            raise
        return find(tight)
    except InfeasibleError:
        if not asked.looks_further:
            raise
        report("nothing fits so: looking at plans that hold as little as they can")
    least: LeastMemory | None = None
    if not any(schedule.splits_backward for schedule in options.schedules):
        counts = least_memory_counts(options, cluster.num_devices)
        least = least_memory(cluster, options, costs, counts, report)
    has = options.memory_bytes or max(g.host.device.memory_bytes for g in cluster.groups)
    if least is None or least.num_bytes <= has * _NEARLY:
        with suppress(InfeasibleError):
            return find(tight)
    if least is not None and least.num_bytes > has:
        raise too_little_memory(cluster, options, least)
    return find(replace(tight, bounds_temporary=False))


def _least_held(options: SearchOptions) -> SearchOptions:
    """Return the same search, with plans that hold as little as they can among the others."""
    return replace(options, prices=(*options.prices, DEAREST))


def _conflict(
    asked: PipelineSearch,
    options: SearchOptions,
    pins: Sequence[PipelinePin],
    costs: VariantCosts,
) -> tuple[PipelinePin, ...]:
    """Return a smallest set of pins without a plan; fewer pins of layouts are planned anew."""
    cluster, by_model = asked.cluster, SharedPlans(asked.layers, options.intra)
    own = layouts_of(pins)

    def is_feasible(some: Sequence[PipelinePin]) -> bool:
        wanted = with_pins(options, some)
        if wanted is None:
            return False
        fewer = layouts_of(some)
        counts = least_memory_counts(wanted, cluster.num_devices)
        plans = costs if fewer.keys() == own.keys() else by_model.of(fewer)[1]
        return fits(cluster, wanted, plans, counts)

    return smallest_conflict(pins, is_feasible)


def _texts(pins: Sequence[PipelinePin]) -> str:
    *most, last = [repr(pin.text) for pin in pins]
    return f"{', '.join(most)} and {last}" if most else last


def _contradiction(
    pins: Sequence[PipelinePin], cluster: ClusterSpec, options: SearchOptions, num_layers: int
) -> str:
    every = options.every_submesh
    also = {pin.stage.submesh for pin in pins if pin.stage is not None}
    kinds, _ = submeshes_of(cluster, every=every, memory_bytes=None, also=also)
    shapes = list(dict.fromkeys(kind.shape for kind in kinds))
    there = (
        f"there are {counted(num_layers, 'layer')}, {counted(cluster.num_devices, 'device')} of "
        f"{cluster.name}, submeshes {', '.join(map(_shape_text, shapes))}"
    )
    possible = dict.fromkeys(kind.shape for kind in cluster.submesh_kinds(every=every))
    lacks = [text for pin in pins if (text := _lack(pin, shapes, possible))]
    there = "; ".join((*lacks, there))
    if len(pins) == 1:
        return f"pin {_texts(pins)} cannot be kept, whatever the memory: {there}"
    return (
        f"pins {_texts(pins)} contradict each other, whatever the memory (any of them can be kept "
        f"without the others): {there}; drop or change one of them"
    )


def _lack(
    pin: PipelinePin, searched: Collection[tuple[int, int]], possible: Collection[tuple[int, int]]
) -> str:
    """Return which submesh a pin asks for that is not searched; nothing if all it wants is."""
    stage = pin.stage
    if stage is not None and stage.submesh is not None and stage.submesh not in possible:
        return f"there is no submesh {_shape_text(stage.submesh)}"
    if stage is None or stage.mesh is None:
        return ""
    count = math.prod(stage.mesh)
    if any(math.prod(shape) == count for shape in searched):
        return ""
    others = [_shape_text(shape) for shape in possible if math.prod(shape) == count]
    if not others:
        return f"there is no submesh of {counted(count, 'device')}"
    name = pin.text.partition("=")[0].replace("mesh", "submesh", 1)
    how = f"{name}={others[0]}"
    return f"a submesh of {counted(count, 'device')} is searched only if it is pinned too, as {how}"


def _shape_text(shape: tuple[int, int]) -> str:
    return "x".join(map(str, shape))


def _too_much(pins: Sequence[PipelinePin], error: InfeasibleError, costs: VariantCosts) -> str:
    why = str(error)
    if isinstance(costs, PinnedCosts) and costs.refused and any(p.layout for p in pins):
        why += f"; on some meshes {costs.refused[0]}"
    if len(pins) == 1:
        return f"no plan keeps pin {_texts(pins)}, and without it there is one: {why}"
    return (
        f"no plan keeps the pins {_texts(pins)} together, and without any one of them there is "
        f"one; drop or change one: {why}"
    )
