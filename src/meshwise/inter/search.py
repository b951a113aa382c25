"""The joint search: stages, submeshes, logical meshes, micro-batches, schedule, rematerialisation.

For each number of micro-batches B the layers are planned on every submesh (`variants`), their
costs composed (`compose`), and for each schedule the best stages chosen (`stage_dp`).  B goes up
from a middle value, and down for as long as the step gets faster.

Source: Alpa section 5; DESIGN decision 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import Cluster
from meshwise.cluster.submesh import Submesh as Place
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError, PlanError, TraceError
from meshwise.inter.anywhere import build_placed
from meshwise.inter.conditioned import MemoryPrice
from meshwise.inter.lazy_table import LazyTable
from meshwise.inter.piece import Remat
from meshwise.inter.pipeline_schedule import ONE_F_ONE_B, PipelineSchedule
from meshwise.inter.second_process import SecondProcess
from meshwise.inter.stage_dp import StagePlan, build_stages
from meshwise.inter.stage_pins import StagePin, masked, without_ones
from meshwise.inter.stage_problem import FloatArray, StageCosts, StageProblem
from meshwise.inter.submeshes import Submesh
from meshwise.inter.transfers import transfer_s
from meshwise.inter.variants import LayerSource, Variant, VariantCosts, logical_views
from meshwise.intra.options import IntraOptions

# Prices of the whole memory of a device, in steps: what a plan may cost more to hold less.
PRICES = (1e-3, 0.3)
_IN_FLIGHT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is searched.

    Attributes:
        batch_size: Rows of the whole batch.
        step_flop: FLOP of the forward pass on the whole batch, for the scale of prices.
        num_microbatches: Values of B; None for powers of two, or the nearest divisors of the batch.
        schedules: To choose from.
        remats: To choose from.
        prices: Of memory, in steps for all that a device has.
        memory_bytes: Of a device; None for what the cluster has.
        use_all_devices: Whether every device must belong to a stage; None: where hosts are equal.
            Slow ones among others may be better left alone.
        num_stages: Exactly so many; None for any number.
        every_submesh: All shapes; else up to one host, and powers of two of hosts, or all.
        pins: What is fixed about stages.
        places: Whether stages may lie in the order of the devices also where hosts are equal:
            transfers inside hosts are then told from those between them.
        guess_s: About what a step takes, for the scale of prices; None: from the FLOP.
        intra: How layers are planned.
    """

    batch_size: int
    step_flop: float
    num_microbatches: tuple[int, ...] | None = None
    schedules: tuple[PipelineSchedule, ...] = (ONE_F_ONE_B,)
    remats: tuple[Remat, ...] = ("none", "full")
    prices: tuple[float, ...] = PRICES
    memory_bytes: int | None = None
    use_all_devices: bool | None = None
    num_stages: int | None = None
    every_submesh: bool = False
    pins: tuple[StagePin, ...] = ()
    places: bool = True
    guess_s: float | None = None
    intra: IntraOptions = field(default_factory=IntraOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best pipeline.

    Attributes:
        plan: Its stages.
        problem: What they were chosen from.
        kinds: Kinds of submeshes, as the problem counts them.
        variants: For each kind the ways to plan on it, as the problem counts them.
        tried: Seconds of the best step for each number of micro-batches; infinite where nothing
            fits that is faster than what was found before.
    """

    plan: StagePlan
    problem: StageProblem
    kinds: tuple[SubmeshKind, ...]
    variants: tuple[tuple[Variant, ...], ...]
    tried: dict[int, float]


def submeshes_of(
    cluster: Cluster,
    *,
    every: bool,
    memory_bytes: int | None,
    also: Collection[tuple[int, int] | None] = (),
    places: bool = False,
) -> tuple[list[SubmeshKind], list[Submesh]]:
    """Kinds of submeshes of a cluster, for costs and for the stage construction.

    Args:
        cluster: The cluster.
        every: All shapes; else up to one host, and powers of two of hosts, or all.
        memory_bytes: Of a device; None for what the cluster has.
        also: Other shapes that are wanted.
        places: Whether stages lie in the order of the devices also where hosts are equal.
    """
    kinds = [
        k
        for k in cluster.submesh_kinds(every=every)
        if every or _is_round(k.num_hosts) or k.num_hosts == cluster.num_hosts or k.shape in also
    ]
    # Only the paper's shapes on equal hosts can always be placed afterwards.
    if not (cluster.is_mixed or every or places):
        return kinds, [_submesh(k, memory_bytes) for k in kinds]
    known = set(kinds)
    starts: dict[tuple[SubmeshKind, bool], set[int]] = {}
    for place in cluster.submeshes(every=every):
        if place.kind in known:
            for first, inside in _starts(cluster, place):
                starts.setdefault((place.kind, inside > 0), set()).add(first)
    # Where a stage begins inside a host, the one before it sends inside that host.
    split = [(k, inner) for k in kinds for inner in (False, True) if (k, inner) in starts]
    found = [
        replace(
            _submesh(k, memory_bytes),
            host_kinds=(k.host.name,) * k.num_hosts if cluster.is_mixed else (),
            starts=tuple(sorted(starts[k, inner])),
            is_inner=inner,
        )
        for k, inner in split
    ]
    return [k for k, _ in split], found


def _submesh(kind: SubmeshKind, memory_bytes: int | None) -> Submesh:
    return Submesh(
        num_hosts=kind.num_hosts,
        devices_per_host=kind.devices_per_host,
        memory_bytes=kind.device.memory_bytes if memory_bytes is None else memory_bytes,
    )


def asked_submeshes(
    cluster: Cluster, options: SearchOptions
) -> tuple[list[SubmeshKind], list[Submesh]]:
    """`submeshes_of` for options."""
    return submeshes_of(
        cluster,
        every=options.every_submesh,
        memory_bytes=options.memory_bytes,
        also={pin.submesh for pin in options.pins},
        places=options.places and cluster.num_hosts > 1,
    )


def _starts(cluster: Cluster, place: Place) -> Iterator[tuple[int, int]]:
    """First devices of a submesh at a place, and of the same in its host up to the next place.

    Stages follow each other without gaps in any order of sizes, so places are not aligned.

    Returns:
        Numbers of the device in the cluster and in its host.
    """
    kind = place.kind
    first, inside = cluster.device_numbers(place)[0], place.first_device
    spare = kind.host.num_devices - inside - kind.devices_per_host
    more = min(spare, kind.devices_per_host - 1) if kind.num_hosts == 1 else 0
    yield from ((first + n, inside + n) for n in range(more + 1))


def _is_round(count: int) -> bool:
    return count & (count - 1) == 0


def variants_of(kind: SubmeshKind, options: SearchOptions, second: float) -> tuple[Variant, ...]:
    """The ways to plan on a submesh; `second` is a guess of what a step takes."""
    memory = options.memory_bytes or kind.device.memory_bytes
    return tuple(
        Variant(
            mesh=mesh,
            remat=remat,
            price=MemoryPrice(seconds_per_byte=price * second / memory, in_flight=_IN_FLIGHT),
        )
        for mesh in _views(kind, options.pins)
        for remat in options.remats
        for price in options.prices
    )


def guessed_s(kinds: Sequence[SubmeshKind], cluster: Cluster, options: SearchOptions) -> float:
    """About what a step takes."""
    rate = max(max(r for _, r in k.device.flop_per_s) for k in kinds)
    return options.guess_s or 3 * options.step_flop / (rate * cluster.num_devices)


def _views(kind: SubmeshKind, pins: Sequence[StagePin]) -> tuple[LogicalMesh, ...]:
    """The logical meshes worth a try, and those that are asked for."""
    views = logical_views(kind)
    known = {without_ones(view.sizes) for view in views}
    sizes = dict.fromkeys(p.mesh for p in pins if p.mesh and p.mesh not in known)
    return (*views, *(kind.mesh(s) for s in sizes if math.prod(s) == kind.num_devices))


def stage_problem(
    costs: StageCosts,
    cluster: Cluster,
    options: SearchOptions,
    num_microbatches: int,
    schedule: PipelineSchedule,
    transfers: FloatArray | None,
) -> StageProblem:
    """What the stages are chosen from."""
    use_all = options.use_all_devices
    return StageProblem(
        costs=costs,
        num_devices=cluster.num_devices,
        num_microbatches=num_microbatches,
        schedule=schedule,
        transfer_s=transfers,
        use_all_devices=not cluster.is_mixed if use_all is None else use_all,
    )


def search(
    source: LayerSource,
    cluster: Cluster,
    options: SearchOptions,
    report: Callable[[str], object] = lambda _: None,
    costs: VariantCosts | None = None,
    rule: Callable[[StageProblem], StagePlan] | None = None,
) -> tuple[Found, VariantCosts]:
    """Find the fastest pipeline.

    Args:
        source: The layers.
        cluster: Where they run.
        options: What is searched.
        report: Is told of progress.
        costs: Plans of these layers from another search, to be added to.
        rule: Chooses the stages in place of the stage construction; it must take the cheapest of
            what it allows, since costs are bounds until they are used.

    Raises:
        InfeasibleError: nothing fits.
        PlanError: a number of micro-batches does not divide the batch.
        TraceError: the step does not separate into micro-batches that were asked for, or into any.
    """
    costs = costs or VariantCosts(source, options.intra)
    with SecondProcess(costs) as beside:
        return _searched(cluster, options, report, costs, beside, rule), costs


def _searched(
    cluster: Cluster,
    options: SearchOptions,
    report: Callable[[str], object],
    costs: VariantCosts,
    beside: SecondProcess,
    rule: Callable[[StageProblem], StagePlan] | None,
) -> Found:
    kinds, submeshes = asked_submeshes(cluster, options)
    second = guessed_s(kinds, cluster, options)
    variants = [variants_of(kind, options, second) for kind in kinds]
    tried: dict[int, float] = {}
    best: Found | None = None
    first: tuple[LazyTable, Callable[[PipelineSchedule], StageProblem]] | None = None
    refused: TraceError | None = None
    for count in _outward(options, cluster.num_devices, tried):
        try:
            table = LazyTable(
                costs,
                submeshes,
                variants,
                count,
                bounds_of=_bounds_of(count, options, cluster.num_devices),
                beside=beside,
                report=lambda text, b=count: report(f"B={b}: {text}"),
            )
        except TraceError as error:
            # Too few rows for what must stay together, such as a group of experts.
            if options.num_microbatches is not None:
                raise
            refused, tried[count] = error, math.inf
            report(f"B={count}: the step does not separate")
            continue
        transfers = transfer_s(costs.source, kinds, count, [m.is_inner for m in submeshes])

        def problem(
            schedule: PipelineSchedule,
            table: LazyTable = table,
            count: int = count,
            transfers: FloatArray = transfers,
        ) -> StageProblem:
            known = masked(table.costs(), options.pins, kinds, variants)
            return stage_problem(known, cluster, options, count, schedule, transfers)

        first = first or (table, problem)
        fastest = math.inf
        for schedule in options.schedules:
            cutoff = min(fastest, math.inf if best is None else best.plan.total_s)
            while True:
                now = problem(schedule)
                plan = _chosen(now, cluster, options, cutoff, rule)
                if plan is None or not table.plan(plan.stages):
                    break
            if plan is None:
                continue
            fastest = plan.total_s
            best = Found(
                plan=plan,
                problem=now,
                kinds=tuple(kinds),
                variants=tuple(variants),
                tried=tried,
            )
        tried[count] = fastest
        is_best = math.isfinite(fastest)
        report(f"B={count}: {f'{fastest:.4g} s a step' if is_best else 'nothing faster fits'}")
    if best is None:
        if first is None and refused is not None:
            raise refused
        if rule is None and first is not None:
            _say_what_is_missing(*first, options)
        what = "no pipeline fits" if rule is None else "no stages that follow the rule fit"
        raise InfeasibleError(what)
    return best


def _say_what_is_missing(
    table: LazyTable, problem: Callable[[PipelineSchedule], StageProblem], options: SearchOptions
) -> None:
    """Raise what the stage construction says of a problem without stages."""
    table.plan_all()
    build_stages(problem(options.schedules[0]), num_stages=options.num_stages)


def _chosen(
    problem: StageProblem,
    cluster: Cluster,
    options: SearchOptions,
    cutoff: float,
    rule: Callable[[StageProblem], StagePlan] | None,
) -> StagePlan | None:
    """The best stages, or what a rule chooses; None if nothing fits that is faster."""
    if rule is None:
        return build_placed(problem, cluster, cutoff, num_stages=options.num_stages)
    try:
        plan = rule(problem)
    except InfeasibleError:
        return None
    return plan if plan.total_s < cutoff else None


def _outward(options: SearchOptions, num_devices: int, tried: dict[int, float]) -> Iterator[int]:
    """Numbers of micro-batches to try: a middle one, all above, those below while steps get faster.

    More micro-batches have the bounds of fewer, so that those that cannot win are told at once;
    and a step that is no faster says little of the next, since less memory may save recomputation.
    """
    values = microbatch_counts(options)
    if options.num_microbatches is not None:
        yield from values
        return
    middle = _middle(values, num_devices)
    yield from values[middle:]
    for at in range(middle - 1, -1, -1):
        yield values[at]
        some = any(map(math.isfinite, tried.values()))
        if some and not tried[values[at]] < tried[values[at + 1]]:
            break


def _middle(values: Sequence[int], num_devices: int) -> int:
    return min(range(len(values)), key=lambda i: abs(math.log2(values[i] / (4 * num_devices))))


def _bounds_of(count: int, options: SearchOptions, num_devices: int) -> int:
    """A number of micro-batches whose bounds serve `count` too, and those next to it."""
    values = microbatch_counts(options)
    if options.num_microbatches is None:
        middle = _middle(values, num_devices)
        # With nothing above the middle one the walk goes down, to two below it at least.
        lowest = values[max(middle - (2 if middle == len(values) - 1 else 1), 0)]
    else:
        lowest = min(values)
    return lowest if count % lowest == 0 else count


def microbatch_counts(options: SearchOptions) -> Sequence[int]:
    """Values of B that may be tried.

    Raises:
        PlanError: one that was asked for does not divide the batch.
    """
    size = options.batch_size
    if options.num_microbatches is None:
        return _near_powers(size)
    if not options.num_microbatches:
        raise PlanError("num_microbatches is empty; leave it out to try powers of two")
    for count in options.num_microbatches:
        if count < 1 or size % count:
            divisors = [b for b in range(1, size + 1) if size % b == 0][:16]
            raise PlanError(
                f"the batch of {size} is not divisible by num_microbatches={count}; divisors are "
                f"{divisors}"
            )
    return options.num_microbatches


def _near_powers(size: int) -> list[int]:
    """For each power of two the nearest divisor, where one is within a factor of the root of 2."""
    divisors = [b for b in range(1, size + 1) if size % b == 0]
    found: set[int] = set()
    for power in range(size.bit_length()):
        off, divisor = min((abs(math.log2(b) - power), b) for b in divisors)
        if off <= 0.5:
            found.add(divisor)
    return sorted(found)
