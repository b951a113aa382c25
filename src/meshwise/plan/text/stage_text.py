"""The stages of a plan as tables of at most 100 columns."""

from __future__ import annotations

import textwrap

from meshwise.plan.record import PlanRecord
from meshwise.plan.stage import Layer, Stage
from meshwise.plan.text.columns import WIDTH, place_text, shortened, table
from meshwise.units import bytes_text, range_text, seconds_text

_LONGEST_NAME = 44
TRIED_NOTE = (
    "The plan is the fastest by simulation of those that were simulated; a number that is not "
    "chosen may be faster by the formula."
)


def stage_lines(plan: PlanRecord) -> list[str]:
    """Return the tables of the stages and of the numbers of micro-batches that were tried."""
    lines = [
        "",
        *table(
            ("stage", "layers", "devices", "mesh", "remat", "forward", "backward", "gathers",
             "once", "peak", "sends"),
            [_row(k, stage) for k, stage in enumerate(plan.stages)],
            "rllllrrrrrr",
        ),
    ]  # fmt: skip
    lines += _shared_meshes(plan)
    lines += _weights_apart(plan)
    if plan.tried:
        rows = [
            (str(b), seconds_text(s) if s < float("inf") else "nothing faster")
            for b, s in plan.tried
        ]
        lines += ["", "step time by number of micro-batches (best found, by the search's formula)"]
        lines += table(("micro-batches", "step"), rows, "rr")
        lines += textwrap.wrap(TRIED_NOTE, WIDTH)
    return lines


def layer_lines(plan: PlanRecord) -> list[str]:
    """Return the layouts of the state of each kind of layer, and what several layers read."""
    lines: list[str] = []
    shown: set[object] = set()
    for k, stage in enumerate(plan.stages):
        for layer in stage.layers:
            places = tuple((x.layout, x.in_host) for x in layer.arguments)
            kind = (layer.equal_to, stage.mesh.sizes, places)
            if kind not in shown:
                shown.add(kind)
                rows = _layouts(layer, stage)
                if rows:
                    lines += ["", f"layer {layer.layer} in stage {k}, mesh {_sizes(stage)}", *rows]
    if plan.tied:
        lines += ["", "parameters that several layers read: " + ", ".join(plan.tied)]
    return lines


def _row(number: int, stage: Stage) -> tuple[str, ...]:
    hosts, devices = stage.submesh
    last = stage.first_device + hosts * devices - 1
    return (
        str(number),
        range_text(stage.first_layer, stage.last_layer),
        range_text(stage.first_device, last),
        _sizes(stage),
        stage.remat,
        seconds_text(stage.forward_s),
        seconds_text(stage.backward_s),
        seconds_text(stage.gather_s) if stage.gather_s else "-",
        seconds_text(stage.once_s),
        bytes_text(stage.peak_bytes),
        bytes_text(stage.send_bytes) if stage.send_bytes else "-",
    )


def _shared_meshes(plan: PlanRecord) -> list[str]:
    """Return which stages share a mesh, and what they need together; nothing if none do."""
    if plan.num_meshes == len(plan.stages):
        return []
    rows = [
        (
            str(mesh),
            ", ".join(str(k) for k, m in enumerate(plan.mesh_of_stage) if m == mesh),
            bytes_text(peak),
        )
        for mesh, peak in enumerate(plan.mesh_peak_bytes)
    ]
    return ["", "stages that share a mesh", *table(("mesh", "stages", "peak"), rows, "rlr")]


def _weights_apart(plan: PlanRecord) -> list[str]:
    """Return what runs later where the backward pass is split, and what waits for it."""
    rows = [
        (
            str(k),
            seconds_text(stage.weights.seconds),
            *([str(plan.delays[k])] if plan.delays else []),
            str(stage.weights.waiting),
            bytes_text(stage.weights.held_bytes),
        )
        for k, stage in enumerate(plan.stages)
        if stage.weights is not None
    ]
    if not rows:
        return []
    # A pass is a forward or a backward pass of one micro-batch.
    later = ("passes later",) if plan.delays else ()
    names = ("stage", "of backward", *later, "waiting at the peak", "each holds")
    return ["", "gradients of weights apart", *table(names, rows, "r" * len(names))]


def _sizes(stage: Stage) -> str:
    return "x".join(map(str, stage.mesh.sizes))


def _layouts(layer: Layer, stage: Stage) -> list[str]:
    rows = [
        (
            shortened(argument.name, _LONGEST_NAME),
            "x".join(map(str, argument.shape)),
            place_text(argument, stage.mesh.names),
        )
        for argument in layer.arguments
        if len(argument.shape) > 1
    ]
    return table(("state", "shape", "layout"), rows, "lll") if rows else []
