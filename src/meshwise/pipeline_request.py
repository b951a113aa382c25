"""What a user asks of `parallelize` as what the search for pipelines takes."""

from __future__ import annotations

from meshwise.errors import PlanError
from meshwise.inter.pipeline_schedule import named
from meshwise.methods import Auto
from meshwise.pipeline_planning import PipelineRequest
from meshwise.planning import PlanRequest


def pipeline_request(request: PlanRequest) -> PipelineRequest:
    """The request for a pipeline.

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
    count = request.num_microbatches
    return PipelineRequest(
        cluster=request.cluster(),
        num_microbatches=None if count == "auto" else (count,),
        num_stages=None if method.stages == "auto" else method.stages,
        schedules=named(method.schedule),
        memory_bytes=request.memory_bytes,
        statistics=request.statistics,
        pins=request.pins,
        measure=method.measure,
    )
