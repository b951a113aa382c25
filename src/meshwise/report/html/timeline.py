"""The simulated step: every task where they can be seen, else an overview and both ends."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.report.html.gantt import (
    AXIS,
    KINDS,
    LEFT,
    PLOT,
    axis,
    gantt,
    row_label,
    row_name,
    stages_by_mesh,
)
from meshwise.report.html.markup import WIDTH, escaped, legend, num, picture, rect
from meshwise.simulate.plan import Simulation
from meshwise.simulate.timeline import Event, Timeline
from meshwise.units import counted, seconds_text

# A page with more tasks is slow and large; a row with more shows none of them.
_MOST_TASKS = 5000
_MOST_A_ROW = 300
# Tasks of the first stage at each end, beyond those that fill the pipeline.
_TASKS_OF_END = 24
# Columns of the overview: with fewer tasks in each, shares would go up and down with every task.
_MOST_COLUMNS, _LEAST_COLUMNS = 295, 60
_TASKS_A_COLUMN = 16
_ROW, _BAR = 34, 28


def timeline_section(simulation: Simulation, measured: Timeline | None = None) -> str:
    """Return the section of the page.

    Args:
        simulation: A step of the plan.
        measured: The step as it ran; it is drawn to the same scale.
    """
    simulated = _simulated(simulation, measured.step_time_s if measured else 0.0)
    return simulated + (_measured(simulation.timeline, measured) if measured else "")


def _measured(simulated: Timeline, timeline: Timeline) -> str:
    """Return the step as it ran, and how far off the simulation was."""
    numbers = range(len(timeline.busy_s))
    rows = "".join(
        f"<tr><td>{mesh}</td><td>{seconds_text(simulated.busy_s[mesh])}</td>"
        f"<td>{seconds_text(timeline.busy_s[mesh])}</td>"
        f"<td>{seconds_text(simulated.exposed_s[mesh])}</td>"
        f"<td>{seconds_text(timeline.exposed_s[mesh])}</td></tr>"
        for mesh in numbers
    )
    end = max(simulated.step_time_s, timeline.step_time_s)
    return (
        "<h2>Measured step</h2>"
        f"<p>{seconds_text(timeline.step_time_s)}, bubble {timeline.bubble_share:.1%}; simulated "
        f"{seconds_text(simulated.step_time_s)}, bubble {simulated.bubble_share:.1%}. Each mesh "
        "waited for each of its instructions, so a step without a clock is faster.</p>"
        + _drawn("measured", timeline, end)
        + "<table><thead><tr><th>mesh</th><th>busy, simulated</th><th>measured</th>"
        "<th>waits for transfers, simulated</th><th>measured</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _drawn(name: str, timeline: Timeline, end: float) -> str:
    """Tasks, or where there are too many of them the shares of time."""
    if _can_be_seen(timeline):
        return _wide(gantt(name, timeline, 0.0, end))
    return _wide(_overview(timeline, _columns(timeline), name))


def _simulated(simulation: Simulation, measured_s: float) -> str:
    """Return the step as the simulator sees it."""
    timeline = simulation.timeline
    kinds = [kind for kind in ("F", "B", "W") if any(e.kind == kind for e in timeline.events)]
    keys = [(f"var(--{kind})", KINDS[kind]) for kind in kinds]
    if any(e.kind in ("sync", "apply") for e in timeline.events):
        keys.append(("var(--once)", "synchronisation and update"))
    keys.append(("var(--idle)", "idle"))
    moved = bool(timeline.transfers)
    if moved:
        keys += [("var(--act)", "activations to the next stage"),
                 ("var(--grad)", "gradients to the one before")]  # fmt: skip
    below = " Thin bars below a row are what it sends." if moved else ""
    if any(len(stages) > 1 for stages in stages_by_mesh(timeline)):
        below = f" A mesh runs several stages: tasks of its first one are darker.{below}"
    head = (
        "<h2>Simulated step</h2>"
        f"<p>Schedule {escaped(simulation.schedule)}, "
        f"{counted(simulation.num_microbatches, 'micro-batch')}, "
        f"{seconds_text(timeline.step_time_s)} a step. The number in a task is its micro-batch; "
        f"point at a task or a transfer for its times.{below}</p>" + legend(keys)
    )
    if _can_be_seen(timeline):
        end = max(timeline.step_time_s, measured_s)
        return head + _wide(gantt("step", timeline, 0.0, end))
    first, last = _ends(timeline)
    columns = _columns(timeline)
    return (
        head
        + "<h3>The whole step</h3><p>There are too many tasks to draw each: the height of a colour "
        f"is its share of the time in {columns} equal parts of the step.</p>"
        + _wide(_overview(timeline, columns))
        + f"<h3>The first {seconds_text(first)}</h3>"
        + _wide(gantt("first", timeline, 0.0, first))
        + f"<h3>The last {seconds_text(timeline.step_time_s - last)}</h3>"
        + _wide(gantt("last", timeline, last, timeline.step_time_s))
    )


def _columns(timeline: Timeline) -> int:
    most = max(_counts(timeline)) // _TASKS_A_COLUMN
    return max(_LEAST_COLUMNS, min(_MOST_COLUMNS, most))


def _wide(drawing: str) -> str:
    return f'<div class="wide">{drawing}</div>'


def _can_be_seen(timeline: Timeline) -> bool:
    counts = _counts(timeline)
    return sum(counts) <= _MOST_TASKS and max(counts) <= _MOST_A_ROW


def _counts(timeline: Timeline) -> list[int]:
    """Tasks of each stage."""
    counts = [0] * len(timeline.memory)
    for event in timeline.events:
        counts[event.mesh] += 1
    return counts


def _ends(timeline: Timeline) -> tuple[float, float]:
    """When the first part ends, and when the last part begins."""
    tasks = [event for event in timeline.events if event.mesh == 0]
    meshes = len(timeline.memory)
    count = min(2 * meshes + _TASKS_OF_END, _MOST_TASKS // (2 * meshes), len(tasks) - 1)
    count = max(count, 1)
    half = timeline.step_time_s / 2
    return min(tasks[count].start_s, half), max(tasks[-count].start_s, half)


def _overview(timeline: Timeline, columns: int, name: str = "overview") -> str:
    """Return a row for each stage; in each column what it does, stacked by share of the time."""
    meshes = len(timeline.memory)
    end = timeline.step_time_s
    parts = axis(0.0, end, meshes * _ROW)
    for mesh in range(meshes):
        y = mesh * _ROW
        name_of_row = row_name(timeline, mesh)
        parts += row_label(name_of_row, mesh, y, _BAR)
        parts.append(rect((LEFT, y, PLOT, _BAR), "idle"))
        shares = _shares([event for event in timeline.events if event.mesh == mesh], end, columns)
        base = [0.0] * columns
        for kind, share in shares.items():
            top = [low + more for low, more in zip(base, share, strict=True)]
            parts.append(_band(base, top, y, kind))
            base = top
        busy = timeline.busy_s[mesh] / end if end else 0.0
        tip = f"{name_of_row} is busy {busy:.1%} of the time"
        parts.append(rect((LEFT, y, PLOT, _BAR), "none", tip))
    description = "; ".join(
        f"{row_name(timeline, mesh)} is busy {timeline.busy_s[mesh] / end:.0%} of the time"
        if end
        else "nothing"
        for mesh in range(meshes)
    )
    size = (WIDTH, meshes * _ROW + AXIS)
    return picture(name, "What each mesh does over the step", description, size, parts)


def _shares(events: Sequence[Event], end: float, columns: int) -> dict[str, list[float]]:
    """For each kind its share of each column."""
    found: dict[str, list[float]] = {}
    if not end:
        return found
    width = end / columns
    for event in events:
        share = found.setdefault(event.kind, [0.0] * columns)
        first = min(int(event.start_s / width), columns - 1)
        last = min(int(event.end_s / width), columns - 1)
        for column in range(first, last + 1):
            inside = min(event.end_s, (column + 1) * width) - max(event.start_s, column * width)
            share[column] += max(inside, 0.0) / width
    order = [kind for kind in KINDS if kind in found]
    return {kind: found[kind] for kind in order}


def _band(base: Sequence[float], top: Sequence[float], y: float, kind: str) -> str:
    """Return the area between two lines of steps."""
    width = PLOT / len(top)

    def steps(values: Sequence[float]) -> list[tuple[float, float]]:
        points: list[tuple[float, float]] = []
        for column, value in enumerate(values):
            height = y + _BAR * (1 - min(value, 1.0))
            points += [(LEFT + column * width, height), (LEFT + (column + 1) * width, height)]
        return points

    outline = [*steps(top), *reversed(steps(base))]
    path: list[str] = []
    before = ("", "")
    for k, (x, height) in enumerate(outline):
        at = (num(x), num(height))
        following = num(outline[k + 1][1]) if k + 1 < len(outline) else ""
        # Points inside a level stretch say nothing.
        if at != before and not (path and at[1] == before[1] == following):
            path.append(f"{at[0]} {at[1]}")
            before = at
        elif path:
            before = at
    return f'<path class="{kind}" d="M{"L".join(path)}Z"/>'
