"""Method + traced step + cluster -> plan.  No device is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from meshwise.baselines.methods import plan_baseline
from meshwise.baselines.search import FoundOnMesh, MeshPlace, Search, flat_shapes
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, MeshwiseError, PinError, PlanError
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.graph.loops import Strategy
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.limit.refusal import TooLargeError, refusal_of_counts, smallest_refusal
from meshwise.intra.options import IntraOptions, IntraResult, OperatorPath
from meshwise.intra.regions import Region, regions
from meshwise.plan.counts.walk import has_ring
from meshwise.plan.fingerprint import fingerprint
from meshwise.plan.fits import REPLAN, REPORT
from meshwise.plan.padding import PaddedDim, Padding
from meshwise.plan.plan import Plan
from meshwise.plan.verify import verify_decision
from meshwise.planner.followed_layouts import followed_layouts
from meshwise.planner.memory_share import limited_plan
from meshwise.planner.mesh_plan import check_plan_fits, finished_plan, method_name
from meshwise.planner.offload import (
    ALL_IN_HOST,
    SOME_IN_HOST,
    FoundStep,
    asked_offload,
    check_host_memory,
    check_offloadable,
    check_rest_fits,
    fastest,
    least_in_host,
)
from meshwise.planner.other_step import other_step
from meshwise.request.constraints import FREE_METHODS, kept_constraints
from meshwise.request.methods import Auto, Follow, Heuristic, IntraOp, Megatron, Method, Replay
from meshwise.request.pins import apart, meshes_with_axes, pinned
from meshwise.request.plan_request import PlanRequest
from meshwise.system.collector import collection_paused
from meshwise.system.progress import say
from meshwise.trace.padding.choose import padded_dims, with_padding
from meshwise.trace.step import TracedStep

TraceFn = Callable[[int, int], TracedStep]

# A mesh of three axes has every plan of its two-axis views and takes ten times as long to plan:
# only when its shape is given.
MAX_VIEW_AXES = 2

# Where so much more than the limit seems to be left with any number of micro-batches, no more of
# them are tried.
_HOPELESS = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """Choices that a question fixes.

    Attributes:
        layouts: Layouts that inputs may have, by position.
        strategies: Strategies that operators which decide alone may have.
    """

    layouts: Mapping[int, tuple[Layout, ...]] = field(default_factory=dict[int, tuple[Layout, ...]])
    strategies: Mapping[OperatorPath, frozenset[Strategy]] = field(
        default_factory=dict[OperatorPath, frozenset[Strategy]]
    )


NOTHING_FORCED = Forced()


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedAttention:
    """A step with each attention as one operator.

    Attributes:
        trace: Traces it for a number of micro-batches and of devices; None where none is found.
        is_long: Tells of the graph of the step as it is and of a device whether scores take so much
            of the step that this form is tried in any case.
    """

    trace: Callable[[int, int], TracedStep | None]
    is_long: Callable[[Graph, DeviceSpec], bool]


_NOT_LOOKED_FOR = JoinedAttention(trace=lambda *_: None, is_long=lambda *_: False)


def make_plan(
    trace: TraceFn, request: PlanRequest, attended: JoinedAttention = _NOT_LOOKED_FOR
) -> tuple[TracedStep, Plan]:
    """Trace a step and plan it.

    Args:
        trace: Traces the step for a number of micro-batches and of devices.
        request: What is asked.
        attended: The step with each attention as one operator.

    Returns:
        The traced step and its plan, verified.

    Raises:
        TraceError, PinError, InfeasibleError, PlanError: what is asked cannot be had.
    """
    if isinstance(request.method, Replay):
        return _replay(trace, attended, request.method.plan, request.memory_bytes)
    if isinstance(request.method, Follow):
        followed = request.method.followed()
        num_devices = followed.mesh.num_devices
        attempt = partial(_plan_after, trace, attended, request, followed)
        device = followed.mesh.device
    else:
        cluster = request.cluster()
        num_devices, device = cluster.num_devices, cluster.device
        attempt = partial(_plan_for, trace, attended, request, cluster)

    def search(offload: bool, most: float) -> FoundStep:
        if request.num_microbatches != "auto":
            return attempt(request.num_microbatches, offload)
        more = partial(_more_microbatches, trace, num_devices)
        return _first_that_fits(lambda count: attempt(count, offload), more, most)

    found = fastest(asked_offload(request.method, device), search)
    return found.step, found.plan


def _first_that_fits(
    attempt: Callable[[int], FoundStep], more: Callable[[int], int | None], most: float
) -> FoundStep:
    """Return the plan of the smallest number of micro-batches, from 1, that fits.

    Where what does not shrink with micro-batches is already too large, no more are tried.
    """
    num_microbatches = 1
    failures: list[InfeasibleError] = []
    peaks: list[tuple[int, int]] = []
    while True:
        try:
            found = attempt(num_microbatches)
            return replace(found, is_tight=found.is_tight or num_microbatches > 1)
        except InfeasibleError as error:
            failures.append(error)
            if isinstance(error, TooLargeError):
                peaks.append((num_microbatches, error.smallest.num_bytes))
                if _rest(peaks) > _HOPELESS * error.limit:
                    raise refusal_of_counts(failures, num_microbatches, all_tried=False) from None
            count = more(num_microbatches)
            if count is None or count > most:
                raise refusal_of_counts(failures, num_microbatches, all_tried=True) from None
            num_microbatches = count


def _rest(peaks: Sequence[tuple[int, int]]) -> float:
    """Return about how many bytes are left however many micro-batches there are.

    One micro-batch has no accumulators of gradients: only what follows is on one curve, a part
    that stays and a part that is inverse to their number.

    Args:
        peaks: Numbers of micro-batches, rising, and bytes of the smallest plan found for each.
    """
    several = [(count, num_bytes) for count, num_bytes in peaks if count > 1]
    if len(several) < 2:
        return 0.0
    (fewer, before), (count, after) = several[-2:]
    return after - (before - after) * fewer / (count - fewer)


def _plan_after(
    trace: TraceFn,
    attended: JoinedAttention,
    request: PlanRequest,
    followed: Plan,
    num_microbatches: int,
    offload: bool,
) -> FoundStep:
    """Plan a step on the mesh of the step that it follows, and with attention as it has it."""
    assert not offload
    mesh = followed.mesh
    joined = (
        attended.trace(num_microbatches, mesh.num_devices) if followed.joins_attention else None
    )
    step = trace(num_microbatches, mesh.num_devices) if joined is None else joined
    limit = request.memory_bytes
    memory = mesh.device.memory_bytes if limit is None else limit
    plan = plan_on(step, request, mesh, memory, cluster=followed.cluster)
    return FoundStep(step=step, plan=replace(plan, joins_attention=joined is not None))


def _more_microbatches(trace: TraceFn, num_devices: int, count: int) -> int | None:
    """Return the next number of micro-batches, at least twice as many; None if there is none."""
    step = trace(1, num_devices)
    size = math.gcd(*(step.in_avals[i].shape[dim] for i, dim in step.batch_dims.items()))
    return next((b for b in range(2 * count, size + 1) if size % b == 0), None)


def _replay(
    trace: TraceFn, attended: JoinedAttention, plan: Plan, memory_bytes: int | None
) -> tuple[TracedStep, Plan]:
    asked = (plan.num_microbatches, plan.mesh.num_devices)
    found = attended.trace(*asked) if plan.joins_attention else None
    whole = trace(*asked) if found is None else found
    try:
        step = with_padding(whole, plan.padding.dims)
    except PlanError:
        raise other_step(plan, whole.graph) from None
    if fingerprint(step.graph) != plan.fingerprint:
        raise other_step(plan, step.graph)
    verify_decision(step.graph, plan.decision, plan.mesh)
    if memory_bytes is not None:
        plan = limited_plan(plan, lambda _: memory_bytes)
    check_plan_fits(step.graph, plan, REPLAN)
    return step, plan


def _plan_for(
    trace: TraceFn,
    attended: JoinedAttention,
    request: PlanRequest,
    cluster: ClusterSpec,
    num_microbatches: int,
    offload: bool,
) -> FoundStep:
    with collection_paused():
        return _best_plan(trace, attended, request, cluster, num_microbatches, offload=offload)


def _best_plan(
    trace: TraceFn,
    attended: JoinedAttention,
    request: PlanRequest,
    cluster: ClusterSpec,
    num_microbatches: int,
    *,
    offload: bool,
) -> FoundStep:
    """Return the plan on the mesh on which the step is fastest.

    Dims are padded, and keys of attention stay split, where that is faster.  Attention is one
    operator also where memory limits the step as it is, or scores take much of it, and that is
    faster.
    """
    step = trace(num_microbatches, cluster.num_devices)
    check_rest_fits(step, cluster, request.memory_bytes, offload=offload)
    limit = request.memory_bytes
    memory = cluster.device.memory_bytes if limit is None else limit
    method, meshes = request.method, _meshes(request.method, cluster)
    if request.placement is not None:
        sizes = request.placement.plan.mesh.sizes
        meshes = [mesh for mesh in meshes if mesh.sizes == sizes]
    meshes = meshes_with_axes(meshes, request.pins)
    dims = padded_dims(step, cluster.num_devices) if _may_pad(method) else ()
    candidates = partial(
        _candidates,
        request=request,
        cluster=cluster,
        meshes=meshes,
        memory=memory,
        offload=offload,
    )
    plain = candidates(step)
    meshes = [c.place.mesh for c in plain]
    say(f"B={num_microbatches}: {_where(meshes, has_padding=False)}")
    if dims:
        say(f"B={num_microbatches}: the same with padded dims, too")
    padded = candidates(with_padding(step, dims)) if dims else []
    if not _is_free(method):
        step, plan = _best_of_each([*plain, *padded], len(plain), dims, request)
        return FoundStep(step=step, plan=plan)
    search = Search(_flat_shapes(cluster), say)
    first = search.prepared([c.place for c in plain])
    joins_first = not (first and first[0].fits) or attended.is_long(step.graph, cluster.device)
    is_wanted = joins_first or _may_need_rings(step, cluster.num_devices)
    joins: list[_Candidate] = []
    # If it cannot be planned so, only the step as it is written is.
    with suppress(MeshwiseError):
        joined = attended.trace(num_microbatches, cluster.num_devices) if is_wanted else None
        joins = [] if joined is None else candidates(joined)
    if joins:
        say(f"B={num_microbatches}: the same with attention as one operator, too")
    tried = [*plain, *joins, *padded] if joins_first else [*plain, *padded, *joins]
    if joins_first:
        # It holds less and is mostly faster: the others are then soon known to cost more.
        search.over([c.place for c in joins])
    search.run(first)
    unpadded = search.best
    search.over([c.place for c in padded])
    found = None if search.best is None else search.found()
    if joins and not joins_first:
        search.over([c.place for c in joins])
        better = search.found()
        found = better if _has_ring(tried[better.place], better) else found
    found = found or search.found()
    best = tried[found.place]
    is_joined = any(best is candidate for candidate in joins)
    where = _where(meshes, has_padding=bool(dims))
    if is_joined or (joins and joins_first):
        where = f"{where}, with attention as one operator or not"
    plan = _padded(
        best.finished(found.result, request, where),
        dims if any(best is candidate for candidate in padded) else (),
        unpadded.price_s if unpadded is not None else None,
    )
    return FoundStep(
        step=best.traced,
        plan=replace(plan, joins_attention=is_joined),
        least_s=search.least_s,
        is_tight=search.is_tight,
    )


def _may_need_rings(step: TracedStep, num_devices: int) -> bool:
    """Return whether a micro-batch has too few rows for all devices.

    Rows of the batch are the better thing to split, as nothing of them has to meet.
    """
    sizes = {step.in_avals[i].shape[dim] for i, dim in step.batch_dims.items()}
    rows = math.gcd(*sizes) // step.num_microbatches
    return rows == 0 or rows % num_devices != 0


def _has_ring(candidate: _Candidate, found: FoundOnMesh) -> bool:
    """Return whether keys of attention go round in the plan of a candidate."""
    place = candidate.place
    return has_ring(place.graph, found.result.decision, place.mesh.sizes)


def _is_free(method: Method) -> bool:
    """Return whether all meshes are one search; by the paper's objective each has its own."""
    is_timed = isinstance(method, IntraOp) and method.objective == "time"
    return is_timed or isinstance(method, Auto)


def _best_of_each(
    candidates: Sequence[_Candidate],
    num_plain: int,
    dims: tuple[PaddedDim, ...],
    request: PlanRequest,
) -> tuple[TracedStep, Plan]:
    """Return the fastest of the plans that a method has on each mesh; the gap is of its mesh."""
    plans: list[tuple[float, int, Plan]] = []
    failures: list[InfeasibleError] = []
    for i, candidate in enumerate(candidates):
        try:
            plan = candidate.planned(request)
        except InfeasibleError as error:
            failures.append(error)
            continue
        plans.append((plan.step_time_s, i, plan))
    if not plans:
        raise smallest_refusal(failures)
    _, number, plan = min(plans, key=lambda item: item[:2])
    unpadded_s = min((s for s, i, _ in plans if i < num_plain), default=None)
    traced = candidates[number].traced
    return traced, _padded(plan, dims if number >= num_plain else (), unpadded_s)


def _padded(plan: Plan, dims: tuple[PaddedDim, ...], unpadded_s: float | None) -> Plan:
    """Return the plan with what it pads."""
    if not dims:
        return plan
    return replace(plan, padding=Padding(dims=dims, unpadded_step_time_s=unpadded_s))


def _where(meshes: Sequence[LogicalMesh], *, has_padding: bool) -> str:
    """On which meshes the bound of a search holds."""
    names = [_shape(mesh) for mesh in meshes]
    where = "on this mesh" if len(names) == 1 else f"on the meshes {', '.join(names)}"
    return f"{where}, padded or not" if has_padding else where


def _shape(mesh: LogicalMesh) -> str:
    return "x".join(map(str, mesh.sizes))


def _may_pad(method: Method) -> bool:
    """Methods whose plans pad dims where it pays; "alpa" is the paper's formulation, without."""
    return isinstance(method, (Auto, Megatron)) or (
        isinstance(method, IntraOp) and method.objective == "time"
    )


def _meshes(method: Method, cluster: ClusterSpec) -> list[LogicalMesh]:
    """Return the logical meshes that a method tries."""
    match method:
        case IntraOp(mesh_shape=shape) | Heuristic(mesh_shape=shape) if shape is not None:
            return [cluster.mesh(shape)]
        case Megatron(dp=dp, tp=tp, pp=pp):
            assert pp == 1  # the trace refuses stages
            return [cluster.mesh((dp, tp))]
        case Auto() | IntraOp() | Heuristic():
            shapes = [s for s in cluster.mesh_shapes() if len(s) <= MAX_VIEW_AXES]
            return [cluster.mesh(shape) for shape in shapes]
        case _:
            return [cluster.mesh(shape) for shape in _flat_shapes(cluster)]


def _flat_shapes(cluster: ClusterSpec) -> tuple[tuple[int, ...], ...]:
    return flat_shapes(cluster.num_hosts, cluster.devices_per_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A step on one of the meshes that may be taken.

    Attributes:
        traced: The step as it was traced.
        step: The same with the graph that the pins make of it.
        place: The graph on the mesh, with what is asked.
        cluster: Where the mesh lies; None if only the mesh is known.
    """

    traced: TracedStep
    step: TracedStep
    place: MeshPlace
    cluster: ClusterSpec | None

    def planned(self, request: PlanRequest) -> Plan:
        """Return the plan of the method.

        Raises:
            InfeasibleError, SolverError: there is none.
        """
        place, method = self.place, request.method
        if isinstance(method, (IntraOp, Auto, Follow)):
            # Where the free plan is not proved best, the search tries all named methods too.
            search = Search(report=say)
            search.over([place])
            return self.finished(search.found().result, request)
        result = plan_baseline(
            method_name(method),
            place.graph,
            place.mesh,
            place.batch_dims,
            place.options,
            place.parts,
        )
        return self.finished(result, request)

    def finished(
        self, result: IntraResult, request: PlanRequest, where: str = "on this mesh"
    ) -> Plan:
        """Return all that the plan says.

        Args:
            result: The decision.
            request: What was asked.
            where: On which meshes its gap holds.
        """
        if self.place.options.offload:
            check_host_memory(self.place, result)
            is_asked = isinstance(request.method, Auto) and request.method.offload
            where = f"{where}, {ALL_IN_HOST if is_asked else SOME_IN_HOST}"
            result = result if is_asked else least_in_host(self.place, result)
        say(f"counting and verifying the plan on the mesh {_shape(self.place.mesh)}")
        plan = finished_plan(
            self.step, self.place, result, request, cluster=self.cluster, where=where
        )
        check_plan_fits(self.place.graph, plan, REPORT)
        return plan


@dataclass(frozen=True, slots=True)
class _KnownStep:
    """A traced step, and what planning it on several meshes has in common.

    Attributes:
        traced: The step.
        parts: The regions of its graph.
        evaluators: Evaluators that know what was computed for other meshes.
    """

    traced: TracedStep
    parts: tuple[Region, ...]
    evaluators: Evaluators

    @classmethod
    def of(cls, step: TracedStep) -> _KnownStep:
        return cls(step, regions(step.graph), Evaluators())


def _candidates(
    step: TracedStep,
    request: PlanRequest,
    cluster: ClusterSpec,
    meshes: Sequence[LogicalMesh],
    memory: int,
    *,
    offload: bool,
) -> list[_Candidate]:
    """Return a traced step on each of several meshes to which the pins can be kept.

    Raises:
        PinError: there is none; it says why for each mesh.
    """
    known = _KnownStep.of(step)
    if offload:
        check_offloadable(step.graph)
    found: list[_Candidate] = []
    refusals: list[str] = []
    for mesh in meshes:
        try:
            found.append(_candidate(known, request, mesh, memory, cluster=cluster, offload=offload))
        except PinError as error:
            refusals.append(str(error))
    if not found:
        raise PinError("; ".join(dict.fromkeys(refusals)))
    return found


def _candidate(
    known: _KnownStep,
    request: PlanRequest,
    mesh: LogicalMesh,
    memory: int,
    forced: Forced = NOTHING_FORCED,
    *,
    cluster: ClusterSpec | None,
    offload: bool = False,
) -> _Candidate:
    """Return a traced step on a mesh, with what is asked.

    Args:
        known: The step.
        request: What is asked.
        mesh: The mesh.
        memory: Memory of one device, in bytes.
        forced: What is fixed beside the pins.
        cluster: Where the mesh lies; None if only the mesh is known.
        offload: Whether state that only the update reads stays in the memory of hosts.
    """
    method, step = request.method, known.traced
    keeps = isinstance(method, FREE_METHODS)
    kept = kept_constraints(step.program, step.graph, mesh) if keeps else {}
    pins = pinned(apart(step.graph, kept), request.pins, mesh)
    graph = pins.graph
    follows = isinstance(method, Follow)
    followed = followed_layouts(graph, method.followed()) if follows else {}
    if request.placement is not None:
        followed = request.placement.layouts(graph, mesh)
    options = IntraOptions(
        objective=method.objective if isinstance(method, IntraOp) else "time",
        memory_bytes=memory,
        time_limit_s=method.time_limit_s if isinstance(method, (IntraOp, Auto)) else math.inf,
        seed=method.seed if isinstance(method, (IntraOp, Auto)) else 0,
        layouts={**followed, **pins.layouts, **forced.layouts},
        strategies={**kept, **pins.strategies, **forced.strategies},
        offload=offload,
        dump_ilp=request.dump_ilp,
    )
    place = MeshPlace(
        graph=graph,
        mesh=mesh,
        batch_dims=step.batch_dims,
        options=options,
        parts=known.parts if graph is step.graph else regions(graph),
        evaluators=known.evaluators,
    )
    return _Candidate(traced=step, step=replace(step, graph=graph), place=place, cluster=cluster)


def plan_on(
    step: TracedStep,
    request: PlanRequest,
    mesh: LogicalMesh,
    memory: int,
    forced: Forced = NOTHING_FORCED,
    *,
    cluster: ClusterSpec | None = None,
    offload: bool = False,
) -> Plan:
    """Plan a traced step on one mesh.

    Args:
        step: The step.
        request: What is asked; its cluster does not matter any more.
        mesh: The mesh.
        memory: Bytes of one device.
        forced: What is fixed beside the pins; it wins over them.
        cluster: Where the mesh lies, for the plan to say it.
        offload: Whether state that only the update reads stays in the memory of hosts.

    Raises:
        PinError, InfeasibleError, SolverError: there is no such plan.
    """
    known = _KnownStep.of(step)
    found = _candidate(known, request, mesh, memory, forced, cluster=cluster, offload=offload)
    return found.planned(request)
