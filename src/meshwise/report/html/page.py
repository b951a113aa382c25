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
from meshwise.plan.text.optimum import optimum_text
from meshwise.report.host_stats import HostStats
from meshwise.report.html.cluster_map import cluster_map
from meshwise.report.html.hosts import hosts_section
from meshwise.report.html.markup import escaped, memory_banner, stage_rules
from meshwise.report.html.memory import memory_charts
from meshwise.report.html.peak import peak_section
from meshwise.report.html.rivals import rivals_section
from meshwise.report.html.schedules import schedules_section
from meshwise.report.html.seconds import seconds_section
from meshwise.report.html.sharding import sharding_section
from meshwise.report.html.stages import stage_table, tried_table
from meshwise.report.html.timeline import timeline_section
from meshwise.report.html.usage import usage_section
from meshwise.report.plan_memory import simulated_memory
from meshwise.report.simulation_text import device_flop_per_s
from meshwise.simulate.plan import Simulation, simulate_plan
from meshwise.simulate.simulated_plan import SimulatedPlan
from meshwise.simulate.stage_pipeline import one_a_mesh
from meshwise.simulate.timeline import Timeline
from meshwise.units import bytes_text, counted, flop_text, seconds_text

# Name, value, and what is said below it, as text.
Tile = tuple[str, str, str]


def plan_page(
    plan: Plan,
    measured: Timeline | None = None,
    hosts: Sequence[HostStats] = (),
    rivals: Sequence[RivalMethod] = (),
    simulated: Sequence[SimulatedPlan] | None = None,
) -> str:
    """Return one HTML file with everything in it: no network, no other file.

    Args:
        plan: The plan.
        measured: A step as it ran, shown below the simulated one.
        hosts: The processes of the job that ran it.
        rivals: What other methods can do, to be shown beside it.
        simulated: The best pipeline of each schedule that was simulated; None: not known.

    Raises:
        PlanError: the plan cannot be simulated.
    """
    is_one = plan.schedule == ONE_PROGRAM
    simulation = None if plan.cluster is None else simulate_plan(plan)
    check = plan_memory(plan) if simulation is None else simulated_memory(plan, simulation)
    name = plan.model or "Training step"
    stages = counted(len(plan.stages), "stage")
    what = f"for {mesh_text(plan.mesh)}" if is_one else f"of {stages}"
    where = "" if plan.cluster is None else f" on {plan.cluster.name}"
    body = (
        _head(name, f"Plan {what}{where}")
        + "<main>"
        + memory_banner(check)
        + _tiles([*_step_tiles(plan), *(_simulated_tiles(plan, simulation) if simulation else [])])
        + f"<p>{escaped(_quality(plan))}</p>"
        + "".join(f'<p class="warn">{escaped(text)}</p>' for text in plan.warnings)
        + seconds_section(plan, simulation)
        + rivals_section(plan, rivals, simulation)
        + schedules_section(plan, simulated)
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


def _quality(plan: Plan) -> str:
    """Return what is proved of the plan, among which plans, and how the search saw its time."""
    proved = optimum_text(plan, "this space")
    text = proved[0].upper() + proved[1:]
    if plan.gap is not None and plan.space:
        text += f": {plan.space}. Plans outside of it were not looked at"
    formula = seconds_text(plan.formula_s)
    if formula != seconds_text(plan.step_time_s):
        text += (
            f". The search compares plans by a formula, which gives this one {formula}; its step "
            "time is that of a simulated step. What is proved holds by the formula, not for the "
            "simulated time"
        )
    if len(plan.tried) == 1 and plan.gap is not None and plan.schedule != ONE_PROGRAM:
        text += (
            ". Where a number of micro-batches was asked for, plans with others were not searched, "
            "and may be faster: leave out --microbatches, in Python num_microbatches='auto'"
        )
    return f"{text}."


def _step_tiles(plan: Plan) -> list[Tile]:
    _, limit = max(zip(plan.mesh_peak_bytes, mesh_memory_bytes(plan), strict=True))
    count = sum(item.count for item in plan.collectives)
    is_one = plan.schedule == ONE_PROGRAM
    schedule = "in one program" if is_one else plan.schedule_choice
    of_all = "in a step" if is_one else "in a step, all stages together"
    devices = sum(stage.num_devices for stage in one_a_mesh(plan.stages))
    return [
        ("step time", seconds_text(plan.step_time_s),
         "predicted" if is_one else "predicted, by simulation"),
        ("peak memory a device", bytes_text(plan.peak_bytes),
         f"of {bytes_text(limit)} that may be used, predicted"),
        ("dense work a device", flop_text(plan.device_flop), "in a step"),
        ("collectives", str(count), of_all),
        ("micro-batches", str(plan.num_microbatches), schedule),
        ("devices", str(devices), plan.stages[0].mesh.device.name),
    ]  # fmt: skip


def _simulated_tiles(plan: Plan, simulation: Simulation) -> list[Tile]:
    if plan.schedule == ONE_PROGRAM:
        return []
    timeline = simulation.timeline
    waits = seconds_text(max(timeline.exposed_s))
    tiles = [
        ("bubble", f"{timeline.bubble_share:.1%}", "share of the time in which devices are "
         "idle"),
        ("waiting for transfers", waits, "the stage that waits longest; a stage computes while "
         "its results are sent" if plan.hides_transfers else
         "the stage that waits longest; a stage stops while its results are sent"),
        ("batch", str(plan.batch_size), "rows in a step"),
    ]  # fmt: skip
    if plan.step_flop:
        speed = f"{flop_text(device_flop_per_s(plan, simulation))}/s"
        what = "three times the FLOP of the forward pass, a second; recomputation is not counted"
        tiles.append(("useful work a device", speed, what))
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
