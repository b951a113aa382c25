"""A plan as a plain text of at most 100 columns: what is where, what moves, what it costs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout, local_shape
from meshwise.plan.counts.contents import Argument
from meshwise.plan.record import ONE_PROGRAM, PlanRecord
from meshwise.plan.stage import Stage
from meshwise.plan.text.columns import (
    WIDTH,
    largest_rows,
    place_text,
    table,
    type_text,
    with_space_below,
)
from meshwise.plan.text.device_memory import mesh_memory_bytes, plan_memory
from meshwise.plan.text.explain_costs import costs, memory, rivals
from meshwise.plan.text.memory_parts import filled_memory, parts_lines
from meshwise.plan.text.names import joined_names
from meshwise.plan.text.optimum import optimum_text
from meshwise.plan.text.stage_text import each_layer_lines, layer_lines, stage_lines
from meshwise.plan.text.work_text import collective_lines, dense_lines
from meshwise.units import bytes_text, counted, flop_text, seconds_text

# How the warning begins that says why the simulation is above the formula of the search.
UNPRICED = "values that several layers read change their layout"
# So many arguments have a row each.
_FEW = 4
# Of the column of names in the summary.
_NAME_WIDTH = 14


def mesh_text(mesh: LogicalMesh) -> str:
    """Return a mesh as text, as `x=2 y=4, 8 x V100`.

    Args:
        mesh: The mesh.
    """
    axes = " ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
    return f"{axes}, {mesh.num_devices} x {mesh.device.name}"


def explain(plan: PlanRecord, *, full: bool = False) -> str:
    """Return the plan as text, from nothing but the plan; one that does not fit says so first.

    Args:
        plan: The plan.
        full: Whether every layer, every stage and every row has its own lines. Else what is equal
            shares a row, and long tables say how many of their smallest rows are left out.
    """
    lines = with_space_below(plan_memory(plan).warning_lines()) + _summary(plan)
    if plan.schedule == ONE_PROGRAM:
        lines += _section("Arguments", _arguments(plan.stages[0], full=full))
    else:
        lines += stage_lines(plan) + (each_layer_lines(plan) if full else layer_lines(plan))
    if len(plan.stages) == 1:
        of = ""
    elif full:
        of = ", stage by stage"
    else:
        of = ", of each stage alone"
    lines += _section(f"Dense products and convolutions{of}", dense_lines(plan, full=full))
    lines += _section(f"Collectives in a step{of}", collective_lines(plan, full=full))
    together = ", all stages together" if len(plan.stages) > 1 else ""
    lines += _section(f"Seconds of a step{together}", costs(plan, full=full))
    if plan.rivals:
        lines += _section("What forcing another choice costs, by planning again", rivals(plan))
    parts = filled_memory(plan)
    if parts is not None:
        lines += _section(f"What fills the memory of a device{parts.of}", parts_lines(parts))
    if plan.memory_price is not None:
        lines += _section("More memory", memory(plan))
    if plan.padding.dims:
        lines += _section("Padded inside the step", _padded(plan))
    if plan.replicated.largest:
        rows = [(where, bytes_text(size)) for where, size in plan.replicated.largest]
        lines += _section("Runs whole on every device", table(("operator", "bytes"), rows, "lr"))
    if plan.warnings:
        told = [textwrap.wrap(f"- {x}", WIDTH, subsequent_indent="  ") for x in plan.warnings]
        lines += _section("Warnings", [line for text in told for line in text])
    return "\n".join(lines) + "\n"


def _padded(plan: PlanRecord) -> list[str]:
    """Dims that are longer inside, and what that saves."""
    rows = [
        (", ".join(dim.where) or "no argument", str(dim.size), str(dim.padded_size))
        for dim in plan.padding.dims
    ]
    unpadded_s = plan.padding.unpadded_step_time_s
    if unpadded_s is None:
        saving = "no plan without padding fits"
    else:
        saving = f"saves {seconds_text(unpadded_s - plan.step_time_s)} a step (predicted)"
    return [*table(("dims", "size", "padded"), rows, "lrr"), saving]


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *(lines or ["none"])]


def _summary(plan: PlanRecord) -> list[str]:
    peak, limit = max(zip(plan.mesh_peak_bytes, mesh_memory_bytes(plan), strict=True))
    memory = f"{bytes_text(peak)} of {bytes_text(limit)}"
    is_one = plan.schedule == ONE_PROGRAM
    mesh = [("mesh", mesh_text(plan.mesh))] if is_one else []
    schedule = "" if is_one else f", schedule {plan.schedule_choice}"
    rows = [
        *([("model", plan.model)] if plan.model else []),
        *([("method", plan.method), ("objective", plan.objective)] if plan.method else []),
        ("search", optimum_text(plan)),
        *([("space", plan.space)] if plan.gap is not None else []),
        *_place(plan),
        *mesh,
        ("step time", step_text(plan)),
        *(("", text) for text in plan.warnings if text.startswith(UNPRICED)),
        *_bubble(plan),
        *([("transfers", f"{plan.transfers} between hosts")] if plan.transfers else []),
        ("memory", f"{memory} on the worst device (predicted)"),
        *([("verified", plan.verified)] if plan.verified else []),
        ("dense work", f"{flop_text(plan.device_flop)} on the worst device"),
        ("batch", f"{_batch(plan)}{counted(plan.num_microbatches, 'micro-batch')}{schedule}"),
        (
            "replicated",
            f"{plan.replicated.flop_share:.2%} of FLOP and {plan.replicated.bytes_share:.2%} of "
            "bytes run whole on every device",
        ),
    ]
    return [line for name, text in rows for line in _row(name, text)]


def _row(name: str, text: str) -> list[str]:
    """Return a row of the summary; a text that is too long goes on below."""
    space = " " * _NAME_WIDTH
    lines = textwrap.wrap(text, WIDTH - _NAME_WIDTH) or [""]
    return [f"{name:<{_NAME_WIDTH}}{lines[0]}".rstrip(), *(space + line for line in lines[1:])]


def _batch(plan: PlanRecord) -> str:
    return f"{plan.batch_size} in " if plan.batch_size else ""


def _place(plan: PlanRecord) -> list[tuple[str, str]]:
    if plan.cluster is None:
        return []
    stages = "" if plan.schedule == ONE_PROGRAM else f"{counted(len(plan.stages), 'stage')} on "
    return [("cluster", f"{stages}{plan.cluster.name}")]


def step_text(plan: PlanRecord) -> str:
    """Return the predicted time of a step; of a pipeline also another that the search had."""
    step, formula = seconds_text(plan.step_time_s), seconds_text(plan.formula_s)
    if plan.schedule == ONE_PROGRAM:
        return f"{step} (predicted)"
    more = "" if formula == step else f"; {formula} by the formula of the search"
    proved = ", and the proof holds for that formula" if more and plan.gap is not None else ""
    return f"{step} (predicted, by simulation){more}{proved}"


def _bubble(plan: PlanRecord) -> list[tuple[str, str]]:
    if plan.schedule == ONE_PROGRAM:
        return []
    text = (
        f"{plan.bubble_share:.1%} of the time; waiting for transfers at most "
        f"{seconds_text(plan.exposed_s)} of it"
    )
    return [("bubble", text)]


def _device_bytes(tensor: Argument, layout: Layout, mesh: LogicalMesh) -> int:
    return math.prod(local_shape(tensor.shape, layout, mesh.sizes)) * tensor.itemsize


def _arguments(stage: Stage, *, full: bool) -> list[str]:
    """Inputs with their layouts, largest first; of many, those with equal ones share a row."""
    each = full or len(stage.arguments) <= _FEW
    groups: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for position, tensor in enumerate(stage.arguments):
        name, layout = tensor.name or f"input {position}", tensor.layout
        same = (type_text(tensor.dtype, tensor.shape), place_text(tensor, stage.mesh.names))
        groups.setdefault(same, []).append((name, _device_bytes(tensor, layout, stage.mesh)))
    found: list[tuple[int, tuple[str, ...]]] = []
    for (type_of, place), members in groups.items():
        names = [name for name, _ in members]
        for text, positions in _rows_of_names(names, each=each):
            num_bytes = sum(members[i][1] for i in positions)
            row = (text, str(len(positions)), type_of, place, bytes_text(num_bytes))
            found.append((num_bytes, row))
    if not found:
        return []
    rows = [row for _, row in found] if full else largest_rows(found, "bytes")
    header = ("argument", "count", "type", "layout", "a device")
    return table(header, rows, "wrlwr")


def _rows_of_names(names: Sequence[str], *, each: bool) -> list[tuple[str, Sequence[int]]]:
    """Return what stands in a row, and whose names they are."""
    if each:
        return [(name, (position,)) for position, name in enumerate(names)]
    return [(joined.text, joined.members) for joined in joined_names(names)]
