"""What the joint search goes over: submeshes, and on each of them the ways to plan layers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshwise.cluster.mesh import LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import Submesh as Place
from meshwise.cluster.submesh import SubmeshKind
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import logical_views
from meshwise.inter.layer_cost.state_costs import SCRATCH_SHARE, BytePrice
from meshwise.inter.search.stage_pins import StagePin, without_ones
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.intra.options import IntraOptions
from meshwise.kernels.arrays import Floats
from meshwise.plan.stage import Remat
from meshwise.resharding.cross_mesh.strategies import BROADCAST
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule

# Prices of the whole memory of a device, in steps: what a plan may cost more to hold less.
PRICES = (1e-3, 0.3)
# Of plans that hold as little as they can, whatever they take; where nothing fits at the others.
DEAREST = 1e5
# From this price on plans are to hold as little as they can, in stages of one layer too.
_LEAST_HELD = 1e3
_IN_FLIGHT = 4.0
# Between prices of memory that differ by less plans hardly do.
_PRICE_STEP = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is searched.

    Attributes:
        batch_size: Rows of the whole batch.
        step_flop: FLOP of the forward pass on the whole batch, for the scale of prices.
        num_microbatches: Values of B; None for powers of two, or the nearest divisors of the batch.
        schedules: To choose from.
        transfers: How tensors pass between hosts from stage to stage, one of
            `cross_mesh.strategies.STRATEGIES`.
        remats: To choose from.
        prices: Of memory, in steps for all that a device has; for pipelines with one stage on each
            mesh (others: `price_of_memory`).
        memory_bytes: Of a device; None for what the cluster has.
        reserved_share: Of that memory, left free for what the search does not know.
        use_all_devices: Whether every device must belong to a stage; None: where hosts are equal.
            Slow ones among others may be better left alone.
        num_stages: Exactly so many; None for any number.
        every_submesh: All shapes; else up to one host, and powers of two of hosts, or all.
        pins: What is fixed about stages.
        places: Whether stages may lie in the order of the devices also where hosts are equal:
            transfers inside hosts are then told from those between them.
        every_group: Whether fewer micro-batches are searched too where nothing fits with more.
        shares_bounds: Whether several numbers of micro-batches have rough bounds together first.
            What a micro-batch holds is taken to grow no faster than its rows, which may not be so
            by the last per cent.
        bounds_temporary: Whether stages are left out whose temporary values seem too large before
            they are planned, which may not be so by some per cent.
        guess_s: About what a step takes, for the scale of prices; None: from the FLOP.
        intra: How layers are planned.
    """

    batch_size: int
    step_flop: float
    num_microbatches: tuple[int, ...] | None = None
    schedules: tuple[PipelineSchedule, ...] = (ONE_F_ONE_B, EAGER)
    transfers: str = BROADCAST
    remats: tuple[Remat, ...] = ("none", "full")
    prices: tuple[float, ...] = PRICES
    memory_bytes: int | None = None
    reserved_share: float = 0.0
    use_all_devices: bool | None = None
    num_stages: int | None = None
    every_submesh: bool = False
    pins: tuple[StagePin, ...] = ()
    places: bool = True
    every_group: bool = True
    shares_bounds: bool = True
    bounds_temporary: bool = True
    guess_s: float | None = None
    intra: IntraOptions = field(default_factory=IntraOptions)


def submeshes_of(
    cluster: ClusterSpec,
    *,
    every: bool,
    memory_bytes: int | None,
    also: Collection[tuple[int, int] | None] = (),
    places: bool = False,
) -> tuple[list[SubmeshKind], list[StageSubmesh]]:
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
    of_hosts = cluster.host_starts()
    for place in cluster.submeshes(every=every, num_hosts={k.num_hosts for k in kinds}):
        if place.kind in known:
            for first, inside in _starts(of_hosts[place.first_host], place):
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


def _submesh(kind: SubmeshKind, memory_bytes: int | None) -> StageSubmesh:
    return StageSubmesh(
        num_hosts=kind.num_hosts,
        devices_per_host=kind.devices_per_host,
        memory_bytes=kind.device.memory_bytes if memory_bytes is None else memory_bytes,
    )


def asked_submeshes(
    cluster: ClusterSpec, options: SearchOptions
) -> tuple[list[SubmeshKind], list[StageSubmesh]]:
    """`submeshes_of` for options."""
    kinds, submeshes = submeshes_of(
        cluster,
        every=options.every_submesh,
        memory_bytes=options.memory_bytes,
        also={pin.submesh for pin in options.pins},
        places=options.places and cluster.num_hosts > 1,
    )
    return kinds, [_with_reserve(submesh, options.reserved_share) for submesh in submeshes]


def _with_reserve(submesh: StageSubmesh, share: float) -> StageSubmesh:
    reserved = math.ceil(share * submesh.memory_bytes)
    return replace(submesh, memory_bytes=submesh.memory_bytes - reserved, reserved_bytes=reserved)


def _starts(start: int, place: Place) -> Iterator[tuple[int, int]]:
    """First devices of a submesh at a place, and of the same in its host up to the next place.

    Stages follow each other without gaps in any order of sizes, so places are not aligned.

    Args:
        start: Number of the first device of its first host.
        place: The place.

    Returns:
        Numbers of the device in the cluster and in its host.
    """
    kind, inside = place.kind, place.first_device
    first = start + inside
    spare = kind.host.num_devices - inside - kind.devices_per_host
    more = min(spare, kind.devices_per_host - 1) if kind.num_hosts == 1 else 0
    yield from ((first + n, inside + n) for n in range(more + 1))


def _is_round(count: int) -> bool:
    return count & (count - 1) == 0


def variants_of(kind: SubmeshKind, options: SearchOptions, second: float) -> tuple[Variant, ...]:
    """The ways to plan on a submesh, of one kind at the lowest price of memory first.

    Args:
        kind: The submesh.
        options: What is searched.
        second: A guess of what a step takes.
    """
    return tuple(
        priced_way(kind, mesh, remat, price, options, second)
        for mesh in _views(kind, options.pins)
        for remat in options.remats
        for price in sorted(options.prices)
    )


def priced_way(
    kind: SubmeshKind,
    mesh: LogicalMesh,
    remat: Remat,
    price: float,
    options: SearchOptions,
    second: float,
) -> Variant:
    """A way to plan on a submesh.

    Args:
        kind: The submesh.
        mesh: One of its logical meshes.
        remat: What the backward pass computes again.
        price: Of all memory of a device, in steps.
        options: What is searched.
        second: A guess of what a step takes.
    """
    memory = options.memory_bytes or kind.device.memory_bytes
    bytes_price = BytePrice(
        seconds_per_byte=_round_price(price * second / memory),
        in_flight=_IN_FLIGHT,
        scratch_share=1.0 if price > _LEAST_HELD else SCRATCH_SHARE,
    )
    return Variant(mesh=mesh, remat=remat, price=bytes_price)


def _round_price(seconds_per_byte: float) -> float:
    """Return a price near another one: a power of `_PRICE_STEP`.

    So that clusters with a little more memory, or more devices, are planned at the same prices, and
    what earlier plans found out about layers serves them too.
    """
    if seconds_per_byte == 0:
        return 0.0
    return _PRICE_STEP ** round(math.log(seconds_per_byte, _PRICE_STEP))


def guessed_s(kinds: Sequence[SubmeshKind], cluster: ClusterSpec, options: SearchOptions) -> float:
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
    cluster: ClusterSpec,
    options: SearchOptions,
    num_microbatches: int,
    schedule: PipelineSchedule,
    transfers: Floats | None,
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
