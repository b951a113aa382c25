"""Whether the parts of a pipeline fit together: what an edited file can break."""

from __future__ import annotations

from meshwise.cluster.spec import Cluster
from meshwise.errors import PlanError
from meshwise.graph.layout import is_valid
from meshwise.inter.pipeline_plan import PipelinePlan, PipelineStage
from meshwise.inter.stage_hosts import stage_hosts


def check_pipeline(plan: PipelinePlan) -> None:
    """Check what can be checked without the step.

    Raises:
        PlanError: naming the field that contradicts another.
    """
    if not plan.stages:
        raise PlanError("field 'stages': a pipeline needs at least one stage")
    if plan.batch_size % plan.num_microbatches:
        raise PlanError(
            f"field 'num_microbatches': {plan.num_microbatches} does not divide the batch of "
            f"{plan.batch_size}"
        )
    try:
        table = plan.table()
    except PlanError as error:
        raise PlanError(f"field 'schedule': {error}") from error
    for number, (m, own) in enumerate(zip(table.mesh_of_stage, plan.mesh_of_stage, strict=True)):
        if m != own:
            raise PlanError(
                f"field 'stages[{number}].first_device': the stage lies on mesh {own}, schedule "
                f"{plan.schedule} runs it on mesh {m} of {plan.num_meshes}"
            )
    next_layer = 0
    for number, stage in enumerate(plan.stages):
        _check_layers(stage, f"stages[{number}]", next_layer)
        next_layer = stage.last_layer + 1
        _check_layouts(stage, f"stages[{number}]")
    _check_decisions(plan)
    check_places(plan, plan.cluster)


def _check_decisions(plan: PipelinePlan) -> None:
    num_layers = plan.stages[-1].last_layer + 1
    if plan.cuts and len(plan.cuts) != num_layers:
        raise PlanError(f"field 'cuts': {len(plan.cuts)} for {num_layers} layers")
    following = 0
    for number, (first, last) in enumerate(plan.cuts):
        if first != following or last < first:
            raise PlanError(
                f"field 'cuts[{number}]': operators {first} to {last}, but the next one is "
                f"{following}; every operator is in one layer, in order"
            )
        following = last + 1
    for number, stage in enumerate(plan.stages):
        for place, layer in enumerate(stage.layers):
            if layer.decision is not None and layer.decision >= len(plan.decisions):
                raise PlanError(
                    f"field 'stages[{number}].layers[{place}].decision': there is no decision "
                    f"{layer.decision} among {len(plan.decisions)}"
                )


def check_places(plan: PipelinePlan, cluster: Cluster) -> None:
    """Check that a cluster has the devices of every stage, and none of them twice.

    Raises:
        PlanError: naming the stage that has no place.
    """
    owner: dict[tuple[int, int], int] = {}
    for number, stage in enumerate(plan.stages):
        hosts, devices = stage.submesh
        if stage.mesh.num_devices != stage.num_devices:
            raise PlanError(
                f"field 'stages[{number}].mesh': {stage.mesh.num_devices} devices, but 'submesh' "
                f"has {hosts} x {devices}"
            )
        first = stage_hosts(stage, cluster)
        if first is None:
            raise PlanError(
                f"field 'stages[{number}]': {devices} devices of each of {hosts} hosts from device "
                f"{stage.first_device} on are not in cluster {cluster.name!r} of "
                f"{cluster.num_hosts} hosts and {cluster.num_devices} devices; plan for that "
                "cluster"
            )
        for host in first.hosts:
            for device in range(first.first_device, first.first_device + devices):
                other = owner.setdefault((host, device), number)
                if other != number and not _share_a_mesh(plan.stages[other], stage):
                    raise PlanError(
                        f"field 'stages[{number}].first_device': device {device} of host {host} "
                        f"belongs to stage {other} too"
                    )


def _share_a_mesh(one: PipelineStage, other: PipelineStage) -> bool:
    return (one.first_device, one.submesh, one.mesh) == (
        other.first_device,
        other.submesh,
        other.mesh,
    )


def _check_layers(stage: PipelineStage, where: str, first_layer: int) -> None:
    if stage.first_layer != first_layer or stage.last_layer < first_layer:
        raise PlanError(
            f"field '{where}.first_layer': layers {stage.first_layer} to {stage.last_layer}, but "
            f"the next layer is {first_layer}; every layer is in one stage, in order"
        )
    found = [layer.layer for layer in stage.layers]
    if found != list(range(stage.first_layer, stage.last_layer + 1)):
        raise PlanError(
            f"field '{where}.layers': the numbers of the layers must be {stage.first_layer} to "
            f"{stage.last_layer}, got {str(found)[:60]}"
        )
    for number, layer in enumerate(stage.layers):
        if layer.equal_to > layer.layer:
            raise PlanError(
                f"field '{where}.layers[{number}].equal_to': {layer.equal_to} comes after layer "
                f"{layer.layer}; it must be the first of the equal layers"
            )


def _check_layouts(stage: PipelineStage, where: str) -> None:
    sizes = stage.mesh.sizes
    for number, layer in enumerate(stage.layers):
        for position, (name, shape, layout) in enumerate(layer.inputs):
            if not is_valid(layout, shape, sizes) or layout.partial:
                raise PlanError(
                    f"field '{where}.layers[{number}].inputs[{position}]': layout {layout} does "
                    f"not fit {name or 'the input'} of shape {list(shape)} on a mesh of "
                    f"{list(sizes)}"
                )
