"""The joint search: stages, submeshes, logical meshes, micro-batches, schedule, rematerialisation.

For each number of micro-batches B the layers are planned on every submesh (`variants`), their
costs composed (`compose`), and for each schedule the best stages chosen (`stage_dp`).  B goes up
and down from a middle value, for as long as the step gets faster.

Source: Alpa section 5; DESIGN decision 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshwise.cluster.spec import Cluster
from meshwise.cluster.submesh import SubmeshKind
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.conditioned import MemoryPrice
from meshwise.inter.lazy_table import LazyTable
from meshwise.inter.piece import Remat
from meshwise.inter.pipeline_schedule import ONE_F_ONE_B, PipelineSchedule
from meshwise.inter.stage_dp import StagePlan, build_stages, build_stages_below
from meshwise.inter.stage_problem import StageProblem
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
        num_microbatches: Values of B; None for all powers of two that divide the batch.
        schedules: To choose from.
        remats: To choose from.
        prices: Of memory, in steps for all that a device has.
        memory_bytes: Of a device; None for what the cluster has.
        use_all_devices: Whether every device must belong to a stage.
        num_stages: Exactly so many; None for any number.
        every_submesh: All shapes; else up to one host, and powers of two of hosts, or all.
        intra: How layers are planned.
    """

    batch_size: int
    step_flop: float
    num_microbatches: tuple[int, ...] | None = None
    schedules: tuple[PipelineSchedule, ...] = (ONE_F_ONE_B,)
    remats: tuple[Remat, ...] = ("none", "full")
    prices: tuple[float, ...] = PRICES
    memory_bytes: int | None = None
    use_all_devices: bool = True
    num_stages: int | None = None
    every_submesh: bool = False
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
    cluster: Cluster, *, every: bool, memory_bytes: int | None
) -> tuple[list[SubmeshKind], list[Submesh]]:
    """Kinds of submeshes of a cluster, for costs and for the stage construction."""
    kinds = [
        k
        for k in cluster.submesh_kinds(every=every)
        if every or _is_round(k.num_hosts) or k.num_hosts == cluster.num_hosts
    ]
    starts: dict[SubmeshKind, list[int]] = {k: [] for k in kinds}
    # Only the paper's shapes on equal hosts can always be placed afterwards.
    has_places = cluster.is_mixed or every
    if has_places:
        for place in cluster.submeshes(every=every):
            if place.kind not in starts:
                continue
            starts[place.kind].append(cluster.device_numbers(place)[0])
    found = [
        Submesh(
            num_hosts=k.num_hosts,
            devices_per_host=k.devices_per_host,
            memory_bytes=k.device.memory_bytes if memory_bytes is None else memory_bytes,
            host_kinds=(k.host.name,) * k.num_hosts if cluster.is_mixed else (),
            starts=tuple(sorted(starts[k])) if has_places else None,
        )
        for k in kinds
    ]
    return kinds, found


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
        for mesh in logical_views(kind)
        for remat in options.remats
        for price in options.prices
    )


def search(
    source: LayerSource,
    cluster: Cluster,
    options: SearchOptions,
    report: Callable[[str], object] = lambda _: None,
) -> tuple[Found, VariantCosts]:
    """Find the fastest pipeline.

    Args:
        source: The layers.
        cluster: Where they run.
        options: What is searched.
        report: Is told of progress.

    Raises:
        InfeasibleError: nothing fits.
        PlanError: a number of micro-batches does not divide the batch.
    """
    kinds, submeshes = submeshes_of(
        cluster, every=options.every_submesh, memory_bytes=options.memory_bytes
    )
    rate = max(max(r for _, r in k.device.flop_per_s) for k in kinds)
    second = 3 * options.step_flop / (rate * cluster.num_devices)
    variants = [variants_of(kind, options, second) for kind in kinds]
    costs = VariantCosts(source, options.intra)
    tried: dict[int, float] = {}
    best: Found | None = None
    first: tuple[LazyTable, StageProblem] | None = None
    for count in _outward(options, cluster.num_devices, tried):
        table = LazyTable(
            costs,
            submeshes,
            variants,
            count,
            bounds_of=_bounds_of(count, options, cluster.num_devices),
            report=lambda text, b=count: report(f"B={b}: {text}"),
        )
        problem = StageProblem(
            costs=table.costs(),
            num_devices=cluster.num_devices,
            num_microbatches=count,
            transfer_s=transfer_s(source, kinds, count),
            use_all_devices=options.use_all_devices,
        )
        first = first or (table, problem)
        fastest = math.inf
        for schedule in options.schedules:
            problem = replace(problem, schedule=schedule)
            cutoff = min(fastest, math.inf if best is None else best.plan.total_s)
            plan, problem = _best_stages(problem, table, cutoff, options.num_stages)
            if plan is None:
                continue
            fastest = plan.total_s
            best = Found(
                plan=plan,
                problem=problem,
                kinds=tuple(kinds),
                variants=tuple(variants),
                tried=tried,
            )
        tried[count] = fastest
        is_best = math.isfinite(fastest)
        report(f"B={count}: {f'{fastest:.4g} s a step' if is_best else 'nothing faster fits'}")
    if best is None:
        assert first is not None
        table, problem = first
        table.plan_all()
        build_stages(replace(problem, costs=table.costs()), num_stages=options.num_stages)
        raise InfeasibleError("no pipeline fits")
    return best, costs


def _best_stages(
    problem: StageProblem, table: LazyTable, below_s: float, num_stages: int | None
) -> tuple[StagePlan | None, StageProblem]:
    """The best stages if they take less than `below_s`, and the problem with what they use."""
    while True:
        plan = build_stages_below(problem, below_s, num_stages=num_stages)
        if plan is None or not table.plan(plan.stages):
            return plan, problem
        problem = replace(problem, costs=table.costs())


def _outward(options: SearchOptions, num_devices: int, tried: dict[int, float]) -> Iterator[int]:
    """Numbers of micro-batches to try: from the middle, both ways while the step gets faster."""
    values = microbatch_counts(options)
    if options.num_microbatches is not None:
        yield from values
        return
    middle = _middle(values, num_devices)
    yield values[middle]
    for way in (1, -1):
        before = tried[values[middle]]
        at = middle + way
        while 0 <= at < len(values):
            yield values[at]
            now = tried[values[at]]
            if now >= before and any(map(math.isfinite, tried.values())):
                break
            before, at = now, at + way


def _middle(values: Sequence[int], num_devices: int) -> int:
    return min(range(len(values)), key=lambda i: abs(math.log2(values[i] / (4 * num_devices))))


def _bounds_of(count: int, options: SearchOptions, num_devices: int) -> int:
    """A number of micro-batches whose bounds serve `count` too, and those next to it."""
    values = microbatch_counts(options)
    if options.num_microbatches is None:
        lowest = values[max(_middle(values, num_devices) - 1, 0)]
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
        return [1 << p for p in range(size.bit_length()) if size % (1 << p) == 0]
    for count in options.num_microbatches:
        if count < 1 or size % count:
            divisors = [b for b in range(1, size + 1) if size % b == 0][:16]
            raise PlanError(
                f"the batch of {size} is not divisible by num_microbatches={count}; divisors are "
                f"{divisors}"
            )
    return options.num_microbatches
