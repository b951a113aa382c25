"""A simulated step as a plain text of at most 100 columns, and as numbers."""

from __future__ import annotations

import textwrap

from meshwise.plan.files.json_read import Json
from meshwise.plan.plan import Plan
from meshwise.plan.text.columns import WIDTH, table, with_space_below
from meshwise.report.plan_memory import simulated_memory
from meshwise.simulate.plan import Simulation
from meshwise.simulate.stage_pipeline import one_a_mesh
from meshwise.units import bytes_text, counted, flop_text, range_text, seconds_text

# A step computes its forward pass once and about twice as much backward; what is computed again
# does not count.  Source: docs/facts.md section 6.
_STEP_PER_FORWARD = 3


def device_flop_per_s(plan: Plan, simulation: Simulation) -> float:
    """Useful FLOP a second of each device of the stages, from the forward pass of the model."""
    devices = sum(stage.num_devices for stage in one_a_mesh(plan.stages))
    seconds = simulation.timeline.step_time_s
    return _STEP_PER_FORWARD * plan.step_flop / seconds / devices if seconds else 0.0


def simulation_text(plan: Plan, simulation: Simulation) -> str:
    """Return what a simulation found, as text; what was taken for granted stands first.

    A plan that does not fit says that before.

    Args:
        plan: The plan that was simulated.
        simulation: What was found.

    Returns:
        A text of at most 100 columns.
    """
    timeline, what = simulation.timeline, simulation.of_timeline
    seconds = timeline.step_time_s
    busy = sum(timeline.busy_s) / (seconds * len(timeline.busy_s)) if seconds else 0.0
    notes = [textwrap.wrap(f"note: {note}", WIDTH) for note in simulation.notes]
    lines = [
        *with_space_below(simulated_memory(plan, simulation).warning_lines()),
        *with_space_below([line for note in notes for line in note]),
        *textwrap.wrap(
            f"{counted(len(plan.stages), 'stage')} on {simulation.cluster.name}, batch "
            f"{plan.batch_size} in {counted(simulation.num_microbatches, 'micro-batch')}, "
            f"schedule {simulation.schedule}",
            WIDTH,
        ),
        *textwrap.wrap(_step(plan, simulation), WIDTH),
        f"bubble {timeline.bubble_share:.1%}; waiting for transfers at most "
        f"{seconds_text(max(timeline.exposed_s))}",
        f"stages are busy {busy:.1%} of the time" + _useful(plan, simulation),
        "",
        *table(
            (
                what,
                "layers",
                "busy",
                "of the time",
                "waits",
                "peak",
                "of memory",
            ),
            [_row(simulation, m) for m in range(len(simulation.memory_bytes))],
            "rlrrrrr",
        ),
    ]
    return "\n".join(lines) + "\n"


def _step(plan: Plan, simulation: Simulation) -> str:
    """Return both times of a step; where their micro-batches differ, also of how many."""
    count = simulation.num_microbatches
    step = f"step {seconds_text(simulation.timeline.step_time_s)} (simulated"
    planned = f"the plan says {seconds_text(plan.step_time_s)}"
    if count == plan.num_microbatches:
        return f"{step}); {planned}"
    return (
        f"{step}; times and bytes of {plan.num_microbatches} micro-batches carried over to "
        f"{count}); {planned} with {plan.num_microbatches}"
    )


def _useful(plan: Plan, simulation: Simulation) -> str:
    if not plan.step_flop:
        return ""
    return f"; useful work {flop_text(device_flop_per_s(plan, simulation))}/s a device"


def _row(simulation: Simulation, number: int) -> tuple[str, ...]:
    timeline = simulation.timeline
    busy_s, peak = timeline.busy_s[number], timeline.peak_bytes[number]
    share = busy_s / timeline.step_time_s if timeline.step_time_s else 0.0
    return (
        str(number),
        ", ".join(range_text(s.first_layer, s.last_layer) for s in simulation.stages_of(number)),
        seconds_text(busy_s),
        f"{share:.1%}",
        seconds_text(timeline.exposed_s[number]),
        bytes_text(peak),
        bytes_text(simulation.memory_bytes[number]),
    )


def simulation_data(plan: Plan, simulation: Simulation) -> dict[str, Json]:
    """Return what a simulation found, as numbers.

    Args:
        plan: The plan that was simulated.
        simulation: What was found.

    Returns:
        JSON values; seconds and bytes by name.
    """
    timeline = simulation.timeline
    seconds = timeline.step_time_s
    return {
        "cluster": simulation.cluster.name,
        "schedule": simulation.schedule,
        "num_microbatches": simulation.num_microbatches,
        "step_time_s": seconds,
        "bubble_share": timeline.bubble_share,
        "exposed_s": max(timeline.exposed_s),
        "device_flop_per_s": device_flop_per_s(plan, simulation),
        **simulated_memory(plan, simulation).data(),
        "stages" if simulation.of_timeline == "stage" else "meshes": [
            {
                "busy_s": timeline.busy_s[k],
                "utilisation": timeline.busy_s[k] / seconds if seconds else 0.0,
                "exposed_s": timeline.exposed_s[k],
                "peak_bytes": timeline.peak_bytes[k],
                "memory_bytes": simulation.memory_bytes[k],
            }
            for k in range(len(simulation.memory_bytes))
        ],
        "planned": {
            "step_time_s": plan.step_time_s,
            "schedule": plan.schedule_choice,
            "num_microbatches": plan.num_microbatches,
        },
        "notes": list(simulation.notes),
    }
