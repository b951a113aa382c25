"""What is asked of a pipeline, and how what a user asks of a plan becomes that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.plan.stage import REMATS, Remat
from meshwise.request.methods import Auto
from meshwise.request.placement import Placement
from meshwise.request.plan_request import PlanRequest
from meshwise.resharding.cross_mesh.strategies import BROADCAST
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.registry import SEARCHED, named
from meshwise.trace.step import Statistics

if TYPE_CHECKING:
    from meshwise.calibrate.layer_times import Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRequest:
    """What is asked of a pipeline.

    Attributes:
        cluster: Where it runs.
        num_layers: Into how many layers the forward pass is cut; None: as many as repeat.
        placement: Where an earlier plan has the state; its layers and stages are taken.
        num_microbatches: Values of B to try; None: powers of two.
        num_stages: Exactly so many; None: any number.
        schedules: To choose from.
        transfers: How tensors pass between hosts from stage to stage, one of
            `cross_mesh.strategies.STRATEGIES`.
        remats: To choose from.
        memory_bytes: Memory of a device, in bytes; None: what the cluster has.
        memory_share: How much of it stages are planned for; the plan names the whole memory.
        use_all_devices: Whether every device must belong to a stage; None: where hosts are equal.
        statistics: "exact", or "local" for statistics (batch norm) of each micro-batch alone.
        pins: What is fixed, names and values as `pipeline_pins` reads them, patterns and layouts.
        measure: Whether layers are timed on the devices of this process, or what times them.
        offload: Whether state that only the update reads stays in the memory of the hosts between
            its uses; None: where nothing fits without.
        time_limit_s: Seconds for the solver, for each view of a mesh; infinite for no limit.
        seed: Of the solver.
    """

    cluster: ClusterSpec
    num_layers: int | None = None
    placement: Placement | None = None
    num_microbatches: tuple[int, ...] | None = None
    num_stages: int | None = None
    schedules: tuple[PipelineSchedule, ...] = SEARCHED
    transfers: str = BROADCAST
    remats: tuple[Remat, ...] = (REMATS[0], REMATS[-1])
    memory_bytes: int | None = None
    memory_share: float = 1.0
    use_all_devices: bool | None = None
    statistics: Statistics = "exact"
    pins: Mapping[str, object] | Sequence[tuple[str, object]] = ()
    measure: bool | Measure = False
    offload: bool | None = None
    time_limit_s: float = math.inf
    seed: int = 0


def pipeline_request(request: PlanRequest) -> PipelineRequest:
    """Return the request for a pipeline.

    Args:
        request: What a user asks of a plan with stages.

    Returns:
        The same for the planner of pipelines.

    Raises:
        PlanError: it asks for what pipelines do not have yet.
    """
    method = request.method
    assert isinstance(method, Auto)
    for name, value in (("rules", request.rules), ("dump_ilp", request.dump_ilp)):
        if value:
            raise PlanError(
                f"{name} is not supported together with Auto(stages={method.stages}) yet; leave "
                "it out, or plan for one mesh"
            )
    count, placement = request.num_microbatches, request.placement
    return PipelineRequest(
        cluster=request.cluster(),
        num_microbatches=None if count == "auto" else (count,),
        num_stages=None if method.stages == "auto" else method.stages,
        schedules=SEARCHED if method.schedule is None else named(method.schedule),
        transfers=method.transfers,
        memory_bytes=request.memory_bytes,
        statistics=request.statistics,
        pins={**request.pins, **placement.pins()} if placement else request.pins,
        placement=placement,
        measure=method.measure,
        offload=method.offload,
        time_limit_s=method.time_limit_s,
        seed=method.seed,
    )
