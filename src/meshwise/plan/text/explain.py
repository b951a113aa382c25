"""A plan as a plain text of at most 100 columns: what is where, what moves, what it costs."""

from __future__ import annotations

import math
import textwrap

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout, local_shape
from meshwise.plan.counts.collectives import collective_sums
from meshwise.plan.counts.contents import Argument, pattern
from meshwise.plan.record import ONE_PROGRAM, PlanRecord
from meshwise.plan.stage import Stage
from meshwise.plan.text.columns import (
    MAX_ROWS,
    WIDTH,
    place_text,
    ranges_text,
    table,
    type_text,
    way_text,
    with_more,
    with_space_below,
)
from meshwise.plan.text.device_memory import mesh_memory_bytes, plan_memory
from meshwise.plan.text.explain_costs import costs, memory, rivals
from meshwise.plan.text.memory_parts import filled_memory, parts_lines
from meshwise.plan.text.optimum import optimum_text
from meshwise.plan.text.stage_text import layer_lines, stage_lines
from meshwise.units import bytes_text, counted, flop_text, plural, seconds_text

# How the warning begins that says why the simulation is above the formula of the search.
UNPRICED = "values that several layers read change their layout"
# Of the column of names in the summary.
_NAME_WIDTH = 14


def mesh_text(mesh: LogicalMesh) -> str:
    """Return a mesh as text, as `x=2 y=4, 8 x V100`.

    Args:
        mesh: The mesh.
    """
    axes = " ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
    return f"{axes}, {mesh.num_devices} x {mesh.device.name}"


def explain(plan: PlanRecord) -> str:
    """Return the plan as text, from nothing but the plan; one that does not fit says so first."""
    lines = with_space_below(plan_memory(plan).warning_lines()) + _summary(plan)
    if plan.schedule == ONE_PROGRAM:
        lines += _section("Arguments", _arguments(plan.stages[0]))
    else:
        lines += stage_lines(plan) + layer_lines(plan)
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, stage in enumerate(plan.stages):
        alike.setdefault(tuple(_dense(stage)), []).append(number)
    for dense, stages in alike.items():
        of = f", {plural(len(stages), 'stage')} {ranges_text(stages)}"
        title = of if len(plan.stages) > 1 else ""
        lines += _section(f"Dense products and convolutions{title}", list(dense))
    lines += _section("Collectives in a step", _collectives(plan))
    together = ", all stages together" if len(plan.stages) > 1 else ""
    lines += _section(f"Seconds of a step{together}", costs(plan))
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
    schedule = "" if is_one else f", schedule {plan.schedule}"
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


def _arguments(stage: Stage) -> list[str]:
    """Inputs with their layouts; those that differ only in a number of their name share a row."""
    groups: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    for position, tensor in enumerate(stage.arguments):
        name, layout = tensor.name or f"input {position}", tensor.layout
        shape = type_text(tensor.dtype, tensor.shape)
        key = (pattern(name), shape, place_text(tensor, stage.mesh.names))
        groups.setdefault(key, []).append((name, _device_bytes(tensor, layout, stage.mesh)))
    if len(groups) > MAX_ROWS:  # the largest are told
        sizes = {key: -sum(size for _, size in members) for key, members in groups.items()}
        groups = {key: groups[key] for key in sorted(groups, key=sizes.__getitem__)}
    rows = [
        (
            members[0][0] if len(members) == 1 else pattern,
            str(len(members)),
            shape,
            spec,
            bytes_text(sum(size for _, size in members)),
        )
        for (pattern, shape, spec), members in groups.items()
    ]
    if not rows:
        return []
    header = ("argument", "count", "type", "layout", "a device")
    return table(header, with_more(rows), "lrllr")


def _dense(stage: Stage) -> list[str]:
    """Dense operators with the layouts that their strategies make."""
    names = stage.mesh.names
    rows = [
        (
            item.where,
            str(item.count),
            way_text(item.operands, item.results, names),
            flop_text(item.device_flop),
        )
        for item in stage.dense
    ]
    if not rows:
        return []
    header = ("operator", "count", "operands -> result", "a device")
    return table(header, with_more(rows), "lrlr")


def _collectives(plan: PlanRecord) -> list[str]:
    """Return the sums by kind and axes, dearest first."""
    sums = collective_sums(plan.collectives, [stage.mesh for stage in plan.stages])
    ordered = sorted(sums.items(), key=lambda entry: (-entry[1][2], entry[0]))
    rows = [
        (
            kind if len(plan.stages) == 1 else f"{kind}, stage {stage}",
            " ".join(axes),
            str(size),
            str(count),
            bytes_text(num_bytes),
            seconds_text(time_s),
        )
        for (stage, kind, axes, size), (count, num_bytes, time_s) in ordered
    ]
    if not rows:
        return []
    values = list(sums.values())
    rows.append(
        (
            "all",
            "",
            "",
            str(sum(count for count, _, _ in values)),
            bytes_text(sum(size for _, size, _ in values)),
            seconds_text(math.fsum(time_s for _, _, time_s in values)),
        )
    )
    header = ("kind", "axes", "group", "count", "bytes", "predicted")
    return table(header, rows, "llrrrr")
