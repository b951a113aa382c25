"""The page of a pipeline, and that of a plan of one mesh."""

from __future__ import annotations

import importlib.resources
import string
from collections.abc import Sequence

from meshwise.graph.layout import Layout
from meshwise.inter.pipeline_plan import PipelinePlan
from meshwise.inter.simulated_plan import Simulation, simulate_plan
from meshwise.plan.contents import pattern
from meshwise.plan.device_memory import plan_memory
from meshwise.plan.explain import mesh_text
from meshwise.plan.plan import Plan, Stage
from meshwise.report.html.cluster_map import cluster_map
from meshwise.report.html.markup import escaped, memory_banner, stage_rules
from meshwise.report.html.memory import memory_charts
from meshwise.report.html.sharding import (
    EXPLAINED,
    axes_legend,
    common_name,
    folded,
    sharding_section,
    tensor_table,
)
from meshwise.report.html.stages import stage_table, tried_table
from meshwise.report.html.timeline import timeline_section
from meshwise.report.plan_file import AnyPlan
from meshwise.report.plan_memory import simulated_memory
from meshwise.report.simulation_text import device_flop_per_s
from meshwise.simulate.timeline import Timeline
from meshwise.units import bytes_text, flop_text, seconds_text

# Name, value, and what is said below it, as text.
Tile = tuple[str, str, str]


def plan_page(plan: AnyPlan, measured: Timeline | None = None) -> str:
    """One HTML file with everything in it: no network, no other file.

    Args:
        plan: Of either kind.
        measured: A step of a pipeline as it ran, shown below the simulated one.

    Raises:
        PlanError: a pipeline cannot be simulated.
    """
    if isinstance(plan, PipelinePlan):
        return _pipeline_page(plan, measured)
    return _one_mesh_page(plan)


def _pipeline_page(plan: PipelinePlan, measured: Timeline | None) -> str:
    simulation = simulate_plan(plan)
    check = simulated_memory(plan, simulation)
    name = plan.model or "Pipeline"
    body = (
        _head(name, f"Pipeline of {len(plan.stages)} stages on {plan.cluster.name}")
        + "<main>"
        + memory_banner(check)
        + _tiles(_pipeline_tiles(plan, simulation))
        + f"<p>The gap is to the best of: {escaped(plan.space)}.</p>"
        + cluster_map(plan, check)
        + timeline_section(simulation, measured)
        + memory_charts(simulation, check)
        + stage_table(plan, simulation)
        + tried_table(plan)
        + sharding_section(plan)
        + _as_text(plan.explain())
        + "</main>"
    )
    return _page(f"Meshwise: {name}", body)


def _pipeline_tiles(plan: PipelinePlan, simulation: Simulation) -> list[Tile]:
    timeline = simulation.timeline
    peak, limit = max(zip(timeline.peak_bytes, simulation.memory_bytes, strict=True))
    difference = timeline.step_time_s / plan.step_time_s - 1 if plan.step_time_s else 0.0
    return [
        ("step, simulated", seconds_text(timeline.step_time_s), f"{difference:+.1%} to predicted"),
        ("step, predicted", seconds_text(plan.step_time_s), f"gap at most {plan.gap:.2%}"),
        ("bubble", f"{timeline.bubble_share:.1%}",
         f"waits for transfers at most {seconds_text(max(timeline.exposed_s))}"),
        ("peak memory a device", bytes_text(peak),
         f"of {bytes_text(limit)}; {bytes_text(plan.peak_bytes)} predicted"),
        ("batch", str(plan.batch_size), f"in {plan.num_microbatches} micro-batches"),
        ("schedule", plan.schedule,
         "transfers beside computation" if plan.hides_transfers else "stages stop for transfers"),
        ("devices", str(plan.cluster.num_devices), plan.cluster.name),
        ("useful work a device", f"{flop_text(device_flop_per_s(plan, simulation))}/s",
         "three times the forward pass"),
    ]  # fmt: skip


# -- one mesh -------------------------------------------------------------------------------------


def _one_mesh_page(plan: Plan) -> str:
    sections = "".join(_arguments(stage) for stage in plan.stages)
    body = (
        _head(plan.method, f"Plan for {mesh_text(plan.mesh)}")
        + "<main>"
        + memory_banner(plan_memory(plan))
        + _tiles(_plan_tiles(plan))
        + (f"<p>The gap is in: {escaped(plan.space)}.</p>" if plan.gap is not None else "")
        + "".join(f'<p class="warn">{escaped(text)}</p>' for text in plan.warnings)
        + f"<h2>Layout of each argument</h2><p>{EXPLAINED}</p>"
        + sections
        + _as_text(plan.explain(), " open")
        + "</main>"
    )
    return _page(f"Meshwise: {plan.method}", body)


def _plan_tiles(plan: Plan) -> list[Tile]:
    memory = plan.mesh.device.memory_bytes
    gap = "no bound known" if plan.gap is None else f"gap at most {plan.gap:.2%}"
    count = sum(item.count for item in plan.collectives)
    return [
        ("step, predicted", seconds_text(plan.step_time_s), gap),
        ("peak memory a device", bytes_text(plan.peak_bytes), f"of {bytes_text(memory)}"),
        ("dense work a device", flop_text(plan.device_flop), "in a step"),
        ("collectives", str(count), "in a step"),
        ("micro-batches", str(plan.num_microbatches), plan.schedule),
        ("devices", str(plan.mesh.num_devices), plan.mesh.device.name),
    ]


def _arguments(stage: Stage) -> str:
    """Arguments with their layouts; those that differ only in a number of their name in one row."""
    groups: dict[tuple[str, tuple[int, ...], Layout], list[str]] = {}
    for k, (tensor, layout) in enumerate(zip(stage.arguments, stage.decision.inputs, strict=True)):
        name = tensor.name or f"input {k}"
        groups.setdefault((pattern(name), tensor.shape, layout), []).append(name)
    inputs = [
        (common_name(names) + (f" ({len(names)})" if len(names) > 1 else ""), shape, layout)
        for (_, shape, layout), names in groups.items()
    ]
    table = tensor_table(folded(inputs), stage.mesh)
    return f'<section class="card">{axes_legend(stage.mesh)}{table}</section>'


# -- the page -------------------------------------------------------------------------------------


def _head(name: str, text: str) -> str:
    return f"<header><h1>{escaped(name)}</h1><p>{escaped(text)}</p></header>"


def _tiles(tiles: Sequence[Tile]) -> str:
    cells = "".join(
        f'<div class="tile"><dt>{escaped(name)}</dt><dd>{escaped(value)}'
        f"<small>{escaped(more)}</small></dd></div>"
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _as_text(text: str, state: str = "") -> str:
    return (
        f"<h2>As text</h2><details{state}><summary>Show</summary>"
        f"<pre>{escaped(text)}</pre></details>"
    )


def _page(title: str, body: str) -> str:
    source = importlib.resources.files("meshwise.report.html").joinpath("page.html")
    template = string.Template(source.read_text(encoding="utf-8"))
    return template.substitute(title=escaped(title), body=body, colours=stage_rules())
