"""A plan as one HTML page."""

from __future__ import annotations

import importlib.resources
import string
from collections.abc import Sequence

from meshwise.baselines.rival_method import RivalMethod
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.plan.text.device_memory import MemoryCheck, mesh_memory_bytes, plan_memory
from meshwise.plan.text.explain import mesh_text
from meshwise.report.host_stats import HostStats
from meshwise.report.html.cluster_map import cluster_map
from meshwise.report.html.hosts import hosts_section
from meshwise.report.html.markup import escaped, memory_banner, stage_rules
from meshwise.report.html.memory import memory_charts
from meshwise.report.html.peak import peak_section
from meshwise.report.html.rivals import rivals_section
from meshwise.report.html.seconds import seconds_section
from meshwise.report.html.sharding import sharding_section
from meshwise.report.html.stages import stage_table, tried_table
from meshwise.report.html.timeline import timeline_section
from meshwise.report.html.usage import usage_section
from meshwise.report.plan_memory import simulated_memory
from meshwise.report.simulation_text import device_flop_per_s
from meshwise.simulate.plan import Simulation, simulate_plan
from meshwise.simulate.stage_run import one_a_mesh
from meshwise.simulate.timeline import Timeline
from meshwise.units import bytes_text, flop_text, seconds_text

# Name, value, and what is said below it, as text.
Tile = tuple[str, str, str]


def plan_page(
    plan: Plan,
    measured: Timeline | None = None,
    hosts: Sequence[HostStats] = (),
    rivals: Sequence[RivalMethod] = (),
) -> str:
    """Return one HTML file with everything in it: no network, no other file.

    Args:
        plan: The plan.
        measured: A step as it ran, shown below the simulated one.
        hosts: The processes of the job that ran it.
        rivals: What other methods can do, to be shown beside it.

    Raises:
        PlanError: the plan cannot be simulated.
    """
    is_one = plan.schedule == ONE_PROGRAM
    simulation = None if plan.cluster is None else simulate_plan(plan)
    check = plan_memory(plan) if simulation is None else simulated_memory(plan, simulation)
    name = plan.model or "Training step"
    what = f"for {mesh_text(plan.mesh)}" if is_one else f"of {len(plan.stages)} stages"
    where = "" if plan.cluster is None else f" on {plan.cluster.name}"
    body = (
        _head(name, f"Plan {what}{where}")
        + "<main>"
        + memory_banner(check)
        + _tiles([*_step_tiles(plan), *(_simulated_tiles(plan, simulation) if simulation else [])])
        + (f"<p>The gap is to the best of: {escaped(plan.space)}.</p>" if plan.space else "")
        + "".join(f'<p class="warn">{escaped(text)}</p>' for text in plan.warnings)
        + seconds_section(plan, simulation)
        + rivals_section(plan, rivals)
        + ("" if simulation is None else _pictures(plan, simulation, check, measured))
        + hosts_section(hosts)
        + peak_section(plan)
        + sharding_section(plan)
        + usage_section(plan)
        + _as_text(plan.explain(), " open" if is_one else "")
        + "</main>"
    )
    return _page(f"Meshwise: {name}", body)


def _pictures(
    plan: Plan, simulation: Simulation, check: MemoryCheck, measured: Timeline | None
) -> str:
    """Return where the stages are and, where there is more than one program, what happens when."""
    where = cluster_map(plan, check)
    if plan.schedule == ONE_PROGRAM:
        return where
    return (
        where
        + timeline_section(simulation, measured)
        + memory_charts(simulation, check)
        + stage_table(plan, simulation)
        + tried_table(plan)
    )


def _step_tiles(plan: Plan) -> list[Tile]:
    gap = "no bound known" if plan.gap is None else f"gap at most {plan.gap:.2%}"
    _, limit = max(zip(plan.mesh_peak_bytes, mesh_memory_bytes(plan), strict=True))
    count = sum(item.count for item in plan.collectives)
    schedule = "in one program" if plan.schedule == ONE_PROGRAM else plan.schedule
    devices = sum(stage.num_devices for stage in one_a_mesh(plan.stages))
    return [
        ("step, predicted", seconds_text(plan.step_time_s), gap),
        ("peak memory a device", bytes_text(plan.peak_bytes), f"of {bytes_text(limit)}, predicted"),
        ("dense work a device", flop_text(plan.device_flop), "in a step"),
        ("collectives", str(count), "in a step"),
        ("micro-batches", str(plan.num_microbatches), schedule),
        ("devices", str(devices), plan.stages[0].mesh.device.name),
    ]


def _simulated_tiles(plan: Plan, simulation: Simulation) -> list[Tile]:
    if plan.schedule == ONE_PROGRAM:
        return []
    timeline = simulation.timeline
    peak, limit = max(zip(timeline.peak_bytes, simulation.memory_bytes, strict=True))
    difference = timeline.step_time_s / plan.step_time_s - 1 if plan.step_time_s else 0.0
    tiles = [
        ("step, simulated", seconds_text(timeline.step_time_s), f"{difference:+.1%} to predicted"),
        ("bubble", f"{timeline.bubble_share:.1%}",
         f"waits for transfers at most {seconds_text(max(timeline.exposed_s))}"),
        ("peak memory, simulated", bytes_text(peak), f"of {bytes_text(limit)}"),
        ("batch", str(plan.batch_size),
         "transfers beside computation" if plan.hides_transfers else "stages stop for transfers"),
    ]  # fmt: skip
    if plan.step_flop:
        speed = f"{flop_text(device_flop_per_s(plan, simulation))}/s"
        tiles.append(("useful work a device", speed, "three times the forward pass"))
    return tiles


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
