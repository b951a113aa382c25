"""Data parallelism, ZeRO and Megatron's grid for a step that has a plan, at the same costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from meshwise.baselines.pipelines.even_stages import divisors, stage_kind
from meshwise.baselines.pipelines.layer_pieces import LayerPieces
from meshwise.baselines.rival_method import RivalMethod, StepParts
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, MeshwiseError, PlanError
from meshwise.inter.cost_table.variant_costs import logical_views
from meshwise.inter.search.search_space import SearchOptions
from meshwise.intra.limit.refusal import TooLargeError
from meshwise.plan.counts.collectives import collective_s
from meshwise.plan.plan import Plan
from meshwise.planner.one_mesh import plan_on
from meshwise.planner.pipeline import search_options
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.step import PlannedCall, PlannedProgram, plan_call
from meshwise.planner.step_call import StepCall
from meshwise.planner.trainer_plan import in_blocks
from meshwise.request import methods
from meshwise.request.pipeline_request import PipelineRequest, pipeline_request
from meshwise.request.plan_request import PlanRequest
from meshwise.system.collector import collection_paused
from meshwise.trace.experts.replace import with_experts
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import TracedStep, open_step, trace_step
from meshwise.trainers.best_point import BestPoint, NothingFitsError, best_point
from meshwise.trainers.megatron import Megatron
from meshwise.trainers.one_mesh import ONE_MESH, OneMesh
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.sizes import Sizes
from meshwise.trainers.trainer import PointSpace
from meshwise.units import counted

Report = Callable[[str], object]

# What Megatron's grid is called; the spaces of points differ beside one mesh and beside stages.
MEGATRON = "Megatron-LM"
# Number of axes of the meshes that are tried besides the one with one axis.
_TWO_AXES = 2
# Rivals may have one micro-batch, whatever was asked of the plan.
_ONE_MICROBATCH = 1


def rivals_of(
    planned: PlannedCall, call: StepCall, request: PlanRequest
) -> tuple[RivalMethod, ...]:
    """Return the fastest of each method beside the plan of a call.

    Args:
        planned: The call with its plan.
        call: The call.
        request: What was asked of the plan.

    Raises:
        PlanError: the plan is replayed or follows another step, so that nothing was chosen.
        ClusterError: it has stages, and hosts differ.
    """
    if isinstance(request.method, (methods.Replay, methods.Follow)):
        raise PlanError(
            f"{type(request.method).__name__} takes a plan as it is, so it has no rivals; ask for "
            "them where the plan is made, as with method=mw.Auto()"
        )
    if isinstance(planned, PlannedPipeline):
        return rivals_of_pipeline(planned, pipeline_request(request))
    assert isinstance(planned, PlannedProgram)
    return rivals_on_one_mesh(planned, call, request)


def rivals_of_pipeline(
    planned: PlannedPipeline, request: PipelineRequest, report: Report = lambda _: None
) -> tuple[RivalMethod, ...]:
    """Return the fastest of each method beside a plan with stages.

    Args:
        planned: The plan of the step.
        request: What was asked of it: cluster, batch, micro-batches, remat and memory hold for the
            rivals too; what it pins does not.  They may also have one micro-batch; where no
            number was asked for, as many as the plan, half as many, or twice as many.
        report: Is told of progress.

    Raises:
        ClusterError: hosts differ.
    """
    kind = stage_kind(request.cluster, 1)
    assert kind is not None  # all devices
    first, *others = logical_views(kind)
    with collection_paused():
        blocks = in_blocks(planned.layers)
        options = search_options(blocks, planned.plan.step_flop, request)
        counts = request.num_microbatches or _near(planned.plan.num_microbatches, options)
        options = replace(options, num_microbatches=tuple(sorted({_ONE_MICROBATCH, *counts})))
        find = partial(
            _fastest,
            blocks=blocks,
            cluster=request.cluster,
            report=report,
            pieces=LayerPieces(blocks),
        )

        def of_mesh(method: type[OneMesh]) -> RivalMethod:
            found = find(method.title, method(first), options=options)
            if found.num_microbatches is None:
                return found
            # On other meshes of the same devices collectives take other times; all else is alike.
            same = replace(options, num_microbatches=(found.num_microbatches,))
            again = (find(method.title, method(mesh), options=same) for mesh in others)
            return _best_of([found, *again])

        return (*map(of_mesh, ONE_MESH), find(MEGATRON, _RowsFirst(), options=options))


class _RowsFirst(Megatron):
    """Megatron-LM, which splits sequences only where there are too few rows for all devices."""

    def points(self, sizes: Sizes) -> Iterator[TrainerPoint]:
        """Yield the points."""
        has_rows = sizes.batch_size >= sizes.num_devices
        return (p for p in super().points(sizes) if p.sequence_parts == 1 or not has_rows)


def _near(num_microbatches: int, options: SearchOptions) -> list[int]:
    """Return the number of micro-batches of the plan, its half and its double, if they divide."""
    found = (num_microbatches // 2, num_microbatches, 2 * num_microbatches)
    return [count for count in found if count and options.batch_size % count == 0]


def _fastest(
    name: str,
    space: PointSpace,
    *,
    blocks: Layering,
    cluster: ClusterSpec,
    options: SearchOptions,
    report: Report,
    pieces: LayerPieces,
) -> RivalMethod:
    try:
        best = best_point(space, blocks, cluster, options, report, pieces)
    except NothingFitsError as error:
        return RivalMethod(name=name, peak_bytes=error.num_bytes)
    except InfeasibleError as error:
        return RivalMethod(name=name, how=str(error))
    return RivalMethod(
        name=name,
        how=space.words(best.point) + _schedule(space, best.point),
        num_microbatches=best.point.num_microbatches,
        step_time_s=best.timeline.step_time_s,
        parts=_parts(best),
        peak_bytes=max(best.timeline.peak_bytes),
    )


def _schedule(space: PointSpace, point: TrainerPoint) -> str:
    """Return in which order its stages run; a rival has its own schedules, whatever was asked."""
    return f", schedule {space.schedule(point).name}" if point.pipeline > 1 else ""


def _parts(best: BestPoint) -> StepParts:
    timeline = best.timeline
    stage = max(range(len(timeline.busy_s)), key=timeline.busy_s.__getitem__)
    busy_s, waits_s = timeline.busy_s[stage], timeline.exposed_s[stage]
    sent_s = min(best.collective_s[stage], busy_s)
    return StepParts(
        computes_s=busy_s - sent_s,
        collectives_s=sent_s,
        transfers_s=waits_s,
        idle_s=max(timeline.step_time_s - busy_s - waits_s, 0.0),
    )


def _best_of(rivals: Sequence[RivalMethod]) -> RivalMethod:
    """Return the fastest; where none fits, the one that needs least."""
    none = math.inf
    return min(
        rivals,
        key=lambda r: (
            none if r.step_time_s is None else r.step_time_s,
            none if r.peak_bytes is None else r.peak_bytes,
        ),
    )


def rivals_on_one_mesh(
    planned: PlannedProgram, call: StepCall, request: PlanRequest
) -> tuple[RivalMethod, ...]:
    """Return the fastest of each method beside a plan of one mesh, where Megatron has no stages.

    Args:
        planned: The plan of the step.
        call: The call that it is for.
        request: What was asked of its plan: cluster, micro-batches, statistics and memory hold for
            the rivals too, which may also have one micro-batch; what it pins does not.
    """
    cluster = request.cluster()
    count, memory = cluster.num_devices, request.memory_bytes or cluster.device.memory_bytes
    meshes = [cluster.mesh(shape) for shape in cluster.mesh_shapes() if len(shape) == _TWO_AXES]
    free = replace(request, pins={}, placement=None, dump_ilp=None)
    asked = [free]
    steps = [planned.traced]
    if planned.traced.num_microbatches != _ONE_MICROBATCH:
        asked.append(replace(free, num_microbatches=_ONE_MICROBATCH))
        steps.append(_traced_whole(call, request, count))

    def as_asked(method: methods.Method) -> Iterator[Callable[[], Plan]]:
        for one in asked:
            yield lambda one=one: plan_call(call, replace(one, method=method)).plan

    def on_meshes(method: methods.Method) -> Iterator[Callable[[], Plan]]:
        one = replace(free, method=method)
        for step, mesh in itertools.product(steps, meshes):
            yield partial(plan_on, step, one, mesh, memory, cluster=cluster)

    flat: list[methods.Method] = [methods.DataParallel(), methods.Zero2(), methods.Zero3()]
    ways = [[*as_asked(method), *on_meshes(method)] for method in flat]
    grid = [methods.Megatron(dp=count // tp, tp=tp) for tp in divisors(count)]
    ways.append([way for method in grid for way in as_asked(method)])
    names = [*(method.title for method in ONE_MESH), MEGATRON]
    return tuple(
        _best_of([_planned(name, make) for make in some])
        for name, some in zip(names, ways, strict=True)
    )


def _traced_whole(call: StepCall, request: PlanRequest, num_devices: int) -> TracedStep:
    """Return a step with one micro-batch."""
    return trace_step(
        with_experts(open_step(call.fun, call.args, call.kwargs, call.signature)),
        num_microbatches=_ONE_MICROBATCH,
        statistics=request.statistics,
        num_devices=num_devices,
        rules=request.rules,
    )


def _planned(name: str, make: Callable[[], Plan]) -> RivalMethod:
    try:
        plan = make()
    except TooLargeError as error:
        return RivalMethod(name=name, peak_bytes=error.smallest.num_bytes)
    except MeshwiseError as error:
        return RivalMethod(name=name, how=str(error))
    mesh, count = "x".join(map(str, plan.mesh.sizes)), plan.num_microbatches
    sent_s = math.fsum(item.count * collective_s(item, plan.mesh) for item in plan.collectives)
    return RivalMethod(
        name=name,
        how=f"mesh {mesh}, {counted(count, 'micro-batch')}",
        num_microbatches=count,
        step_time_s=plan.step_time_s,
        parts=StepParts(
            computes_s=max(plan.step_time_s - sent_s, 0.0),
            collectives_s=min(sent_s, plan.step_time_s),
        ),
        peak_bytes=plan.peak_bytes,
    )
