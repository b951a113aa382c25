"""Whether the parts of a plan fit together: what an edited file can break without a wrong field."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.errors import PlanError
from meshwise.graph.layout import Layout, is_valid, used_axes
from meshwise.plan.places import check_places
from meshwise.plan.record import ONE_PROGRAM, PlanRecord
from meshwise.plan.stage import Layer, Stage
from meshwise.schedules.registry import is_forward_only
from meshwise.units import counted


def check_consistent(plan: PlanRecord) -> None:
    """Check what can be checked without the step; `plan.verify` checks the rest with it.

    Raises:
        PlanError: naming the field that contradicts another.
    """
    _check_schedule(plan)
    next_layer = 0
    for number, stage in enumerate(plan.stages):
        where = f"stages[{number}]"
        if not is_forward_only(plan.schedule):
            _check_layers(stage, where, next_layer)
        next_layer = stage.last_layer + 1
        if stage.weights is not None and stage.weights.seconds > stage.backward_s:
            raise PlanError(
                f"field '{where}.weights.seconds': {stage.weights.seconds:g} s, but the whole "
                f"backward pass takes {stage.backward_s:g} s"
            )
        for place, layer in enumerate(stage.layers):
            _check_arguments(layer, stage, f"{where}.layers[{place}]")
        for place, operator in enumerate(stage.dense):
            for field, layouts in (("operands", operator.operands), ("results", operator.results)):
                _check_axes(layouts, len(stage.mesh.sizes), f"{where}.dense[{place}].{field}")
    _check_cuts(plan)
    _check_decisions(plan)
    _check_collectives(plan)
    if plan.cluster is not None:
        check_places(plan.stages, plan.cluster)


def _check_schedule(plan: PlanRecord) -> None:
    if plan.schedule == ONE_PROGRAM and (len(plan.stages), len(plan.stages[0].layers)) != (1, 1):
        raise PlanError(
            f"field 'schedule': {ONE_PROGRAM} is one stage of one layer, the plan has "
            f"{counted(len(plan.stages), 'stage')}, the first of "
            f"{counted(len(plan.stages[0].layers), 'layer')}"
        )
    if plan.batch_size % plan.num_microbatches:
        raise PlanError(
            f"field 'num_microbatches': {plan.num_microbatches} does not divide the batch of "
            f"{plan.batch_size}"
        )
    if is_forward_only(plan.schedule):
        return
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


def _check_layers(stage: Stage, where: str, first_layer: int) -> None:
    found = [layer.layer for layer in stage.layers]
    if found != list(range(first_layer, first_layer + len(found))):
        raise PlanError(
            f"field '{where}.layers': the numbers of the layers must go on from {first_layer}, "
            f"got {str(found)[:60]}; every layer is in one stage, in order"
        )
    for number, layer in enumerate(stage.layers):
        if layer.equal_to > layer.layer:
            raise PlanError(
                f"field '{where}.layers[{number}].equal_to': {layer.equal_to} comes after layer "
                f"{layer.layer}; it must be the first of the equal layers"
            )


def _check_arguments(layer: Layer, stage: Stage, where: str) -> None:
    for number, argument in enumerate(layer.arguments):
        field, layout = f"{where}.arguments[{number}].layout", argument.layout
        if not is_valid(layout, argument.shape, stage.mesh.sizes):
            raise PlanError(
                f"field '{field}': layout {layout} does not fit {argument.name or 'the argument'} "
                f"of shape {list(argument.shape)} on a mesh of {list(stage.mesh.sizes)}"
            )
        if layout.partial:
            raise PlanError(f"field '{field}': an argument cannot be partial, got {layout}")


def _check_axes(layouts: Sequence[Layout], num_axes: int, where: str) -> None:
    for number, layout in enumerate(layouts):
        if any(axis >= num_axes for axis in used_axes(layout)):
            raise PlanError(
                f"field '{where}[{number}]': layout {layout} names an axis that a mesh of "
                f"{num_axes} axes does not have"
            )


def _check_cuts(plan: PlanRecord) -> None:
    num_layers = plan.stages[-1].last_layer + 1
    if plan.cuts and len(plan.cuts) != num_layers:
        raise PlanError(f"field 'cuts': {len(plan.cuts)} for {counted(num_layers, 'layer')}")
    following = 0
    for number, (first, last) in enumerate(plan.cuts):
        if first != following or last < first:
            raise PlanError(
                f"field 'cuts[{number}]': operators {first} to {last}, but the next one is "
                f"{following}; every operator is in one layer, in order"
            )
        following = last + 1


def _check_decisions(plan: PlanRecord) -> None:
    for number, stage in enumerate(plan.stages):
        for place, layer in enumerate(stage.layers):
            if layer.decision is not None and layer.decision >= len(plan.decisions):
                raise PlanError(
                    f"field 'stages[{number}].layers[{place}].decision': there is no decision "
                    f"{layer.decision} among {len(plan.decisions)}"
                )
    if plan.schedule != ONE_PROGRAM:
        return
    (layer,) = plan.stages[0].layers
    if layer.decision is None:
        raise PlanError("field 'stages[0].layers[0].decision': the step needs a decision")
    inputs = plan.decisions[layer.decision].inputs
    if len(layer.arguments) != len(inputs):
        raise PlanError(
            f"field 'stages[0].layers[0].arguments': {counted(len(layer.arguments), 'argument')}, "
            f"but {counted(len(inputs), 'layout')} in 'decisions[{layer.decision}].inputs'"
        )
    for place, (argument, layout) in enumerate(zip(layer.arguments, inputs, strict=True)):
        if argument.layout != layout:
            raise PlanError(
                f"field 'stages[0].layers[0].arguments[{place}].layout': {argument.layout}, but "
                f"'decisions[{layer.decision}].inputs[{place}]' is {layout}"
            )


def _check_collectives(plan: PlanRecord) -> None:
    for number, item in enumerate(plan.collectives):
        where = f"collectives[{number}]"
        if item.stage >= len(plan.stages):
            raise PlanError(
                f"field '{where}.stage': {item.stage} is not one of "
                f"{counted(len(plan.stages), 'stage')}"
            )
        names = plan.stages[item.stage].mesh.names
        for name in item.axes:
            if name not in names:
                raise PlanError(
                    f"field '{where}.axes': {name[:60]!r} is not an axis of the mesh, "
                    f"{str(list(names))[:60]}"
                )
        if len(set(item.axes)) < len(item.axes):
            raise PlanError(f"field '{where}.axes': an axis stands twice, {str(item.axes)[:60]}")
