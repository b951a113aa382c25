"""Whether the parts of a plan fit together: what an edited file can break without a wrong field."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.errors import PlanError
from meshwise.graph.layout import Layout, is_valid, used_axes
from meshwise.plan.plan import Plan, Stage


def check_consistent(plan: Plan) -> None:
    """Check what can be checked without the graph; `plan.verify` checks the rest with it.

    Raises:
        PlanError: naming the field that contradicts another.
    """
    if not plan.stages:
        raise PlanError("field 'stages': a plan needs at least one stage")
    for number, stage in enumerate(plan.stages):
        _check_stage(stage, f"stages[{number}]")
    for number, item in enumerate(plan.collectives):
        where = f"collectives[{number}]"
        if item.stage >= len(plan.stages):
            raise PlanError(
                f"field '{where}.stage': {item.stage} is not one of {len(plan.stages)} stages"
            )
        names = plan.stages[item.stage].mesh.names
        for name in item.axes:
            if name not in names:
                raise PlanError(
                    f"field '{where}.axes': {name!r} is not an axis of the mesh, {list(names)}"
                )


def _check_stage(stage: Stage, where: str) -> None:
    inputs, sizes = stage.decision.inputs, stage.mesh.sizes
    if len(stage.arguments) != len(inputs):
        raise PlanError(
            f"field '{where}.arguments': {len(stage.arguments)} arguments, but "
            f"{len(inputs)} layouts in '{where}.decision.inputs'"
        )
    for number, (argument, layout) in enumerate(zip(stage.arguments, inputs, strict=True)):
        if not is_valid(layout, argument.shape, sizes):
            raise PlanError(
                f"field '{where}.decision.inputs[{number}]': layout {layout} does not fit "
                f"{argument.name or 'the argument'} of shape {list(argument.shape)} on a mesh of "
                f"{list(sizes)}"
            )
        if layout.partial:
            raise PlanError(
                f"field '{where}.decision.inputs[{number}]': an argument cannot be partial, "
                f"got {layout}"
            )
    for number, operator in enumerate(stage.dense):
        for field, layouts in (("operands", operator.operands), ("results", operator.results)):
            _check_axes(layouts, len(sizes), f"{where}.dense[{number}].{field}")


def _check_axes(layouts: Sequence[Layout], num_axes: int, where: str) -> None:
    for number, layout in enumerate(layouts):
        if any(axis >= num_axes for axis in used_axes(layout)):
            raise PlanError(
                f"field '{where}[{number}]': layout {layout} names an axis that a mesh of "
                f"{num_axes} axes does not have"
            )
