"""The stages of a plan as tables of at most 100 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from meshwise.plan.record import PlanRecord
from meshwise.plan.stage import Layer, Stage
from meshwise.plan.text.columns import (
    WIDTH,
    largest_rows,
    place_text,
    table,
    type_text,
)
from meshwise.plan.text.names import joined_names, numbers_text
from meshwise.units import bytes_text, plural, range_text, seconds_text

# State that has such a share of the bytes together, as biases, is only counted.
_SMALL = 1e-3
_HOLDS_NOTE = (
    "each holds: bytes of a device that a micro-batch keeps after its gradients of activations, "
    "until its gradients of weights are computed (`held_bytes` in files)"
)
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
    """Return the layouts of the state of all layers, and what several layers read.

    Args:
        plan: The plan.
    """
    meshes: dict[tuple[object, ...], list[tuple[Layer, Stage]]] = {}
    for stage in plan.stages:
        same = (stage.mesh.sizes, stage.mesh.names)
        meshes.setdefault(same, []).extend((layer, stage) for layer in stage.layers)
    lines: list[str] = []
    for found in meshes.values():
        rows = _state_rows(found)
        if rows:
            numbers = [layer.layer for layer, _ in found]
            title = f"State of {plural(len(numbers), 'layer')} {numbers_text(numbers)}"
            lines += ["", f"{title}, mesh {_sizes(found[0][1])}"]
            lines += table(("state", "count", "type", "layout", "layers"), rows, "wrlww")
    return lines + _tied(plan)


def each_layer_lines(plan: PlanRecord) -> list[str]:
    """Return the layout of every argument, layer by layer, and what several layers read.

    Args:
        plan: The plan.
    """
    lines: list[str] = []
    for k, stage in enumerate(plan.stages):
        for layer in stage.layers:
            rows = [
                (
                    argument.name or f"input {position}",
                    type_text(argument.dtype, argument.shape),
                    place_text(argument, stage.mesh.names),
                )
                for position, argument in enumerate(layer.arguments)
            ]
            if rows:
                lines += ["", f"layer {layer.layer} in stage {k}, mesh {_sizes(stage)}"]
                lines += table(("state", "type", "layout"), rows, "lll")
    return lines + _tied(plan)


def _tied(plan: PlanRecord) -> list[str]:
    if not plan.tied:
        return []
    return ["", "parameters that several layers read: " + ", ".join(plan.tied)]


def _state_rows(layers: Sequence[tuple[Layer, Stage]]) -> list[tuple[str, ...]]:
    """Return the state of layers on equal meshes; equal layouts share a row."""
    groups: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for layer, stage in layers:
        for position, argument in enumerate(layer.arguments):
            same = (
                type_text(argument.dtype, argument.shape),
                place_text(argument, stage.mesh.names),
            )
            num_bytes = math.prod(argument.shape) * argument.itemsize
            name = argument.name or f"input {position}"
            groups.setdefault(same, []).append((name, layer.layer, num_bytes))
    rows: list[tuple[int, tuple[str, ...]]] = []
    for (type_of, place), found in groups.items():
        for joined in joined_names([name for name, _, _ in found]):
            members = [found[member] for member in joined.members]
            numbers = numbers_text(number for _, number, _ in members)
            row = (joined.text, str(len(members)), type_of, place, numbers)
            rows.append((sum(num_bytes for _, _, num_bytes in members), row))
    return largest_rows(rows, "bytes", _SMALL) if rows else []


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
    lines = table(names, rows, "r" * len(names))
    return ["", "gradients of weights apart", *lines, *textwrap.wrap(_HOLDS_NOTE, WIDTH)]


def _sizes(stage: Stage) -> str:
    return "x".join(map(str, stage.mesh.sizes))
