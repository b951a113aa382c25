"""What each stage did and when, task by task."""

from __future__ import annotations

from meshwise.report.html.markup import WIDTH, label, line, picture, rect, stage_class, ticks
from meshwise.simulate.timeline import ONCE, Event, Timeline, TransferEvent
from meshwise.units import counted, seconds_text

LEFT, RIGHT = 78, 8
PLOT = WIDTH - LEFT - RIGHT
_ROW, _TASK, _LANE = 38, 24, 5
AXIS = 24
KINDS = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradients",
    "sync": "gradient sync",
    "apply": "update",
}
# Thinner than that nothing can be seen.
_LEAST, _LEAST_TRANSFER = 0.6, 1.2
_DIGIT = 6.2


def gantt(name: str, timeline: Timeline, start: float, end: float) -> str:
    """Return the part of a step between two times, in seconds."""
    meshes = len(timeline.memory)
    scale = PLOT / (end - start) if end > start else 0.0
    height = meshes * _ROW + AXIS
    parts = axis(start, end, meshes * _ROW)
    for mesh in range(meshes):
        parts += row_label(row_name(timeline, mesh), mesh, mesh * _ROW, _TASK)
        parts.append(rect((LEFT, mesh * _ROW, PLOT, _TASK), "idle"))
    shown = [e for e in timeline.events if e.end_s > start and e.start_s < end]
    digits = len(str(max((event.microbatch for event in shown), default=0)))
    first = {mesh: min(stages) for mesh, stages in enumerate(stages_by_mesh(timeline)) if stages}
    for event in shown:
        kind = event.kind if event.stage == first[event.mesh] else f"{event.kind} later"
        parts += _task(event, kind, start, end, scale, digits)
    for transfer in timeline.transfers:
        if transfer.end_s > start and transfer.start_s < end:
            parts.append(_transfer(transfer, start, end, scale))
    description = (
        f"A row for each of {counted(meshes, 'mesh')}, time from {seconds_text(start)} to "
        f"{seconds_text(end)}: forward and backward passes by micro-batch, transfers below, the "
        "update at the end"
    )
    return picture(name, "Tasks of each stage over time", description, (WIDTH, height), parts)


def stages_by_mesh(timeline: Timeline) -> list[set[int]]:
    """Return for each mesh the numbers of its stages.

    Args:
        timeline: A step.
    """
    found: list[set[int]] = [set() for _ in timeline.memory]
    for event in timeline.events:
        if event.microbatch != ONCE:
            found[event.mesh].add(event.stage)
    return found


def axis(start: float, end: float, y: float) -> list[str]:
    """Times below a plot, with lines through it."""
    parts: list[str] = []
    for time_s in ticks(start, end, 8):
        x = LEFT + PLOT * (time_s - start) / (end - start) if end > start else LEFT
        kind = "m e" if x > WIDTH - 40 else "m c" if x > LEFT + 10 else "m"
        parts += [line(x, 0, x, y + 4), label(x, y + 17, seconds_text(time_s), kind)]
    return parts


def row_name(timeline: Timeline, mesh: int) -> str:
    """Return what a row is of: `stage 0`, or `mesh 0` where a mesh has several stages.

    Args:
        timeline: A step.
        mesh: Number of the mesh.
    """
    is_shared = any(len(stages) > 1 for stages in stages_by_mesh(timeline))
    return f"{'mesh' if is_shared else 'stage'} {mesh}"


def row_label(name: str, mesh: int, y: float, height: float) -> list[str]:
    """Return the colour and name of a mesh, left of its row."""
    middle = y + height / 2
    return [rect((0, middle - 6, 12, 12), stage_class(mesh), "", 3),
            label(18, middle + 4, name)]  # fmt: skip


def _task(
    event: Event, kind: str, start: float, end: float, scale: float, digits: int
) -> list[str]:
    """Return a task of a class, with its number where the longest of the picture has room."""
    first, last = max(event.start_s, start), min(event.end_s, end)
    x, width = LEFT + (first - start) * scale, max((last - first) * scale, _LEAST)
    number = "" if event.microbatch == ONCE else str(event.microbatch)
    tip = (
        f"{KINDS[event.kind]} {number}, stage {event.stage}: {seconds_text(event.start_s)} to "
        f"{seconds_text(event.end_s)} ({seconds_text(event.end_s - event.start_s)})"
    ).replace(" ,", ",")
    y = event.mesh * _ROW
    # A hair of the ground shows between tasks that are wide enough.
    gap = 0.5 if width > 3 else 0.0
    parts = [rect((x, y, width - gap, _TASK), kind, tip)]
    if number and width >= _DIGIT * digits + 3:
        parts.append(label(x + width / 2, y + _TASK / 2 + 3.5, number, "mb"))
    return parts


def _transfer(transfer: TransferEvent, start: float, end: float, scale: float) -> str:
    first, last = max(transfer.start_s, start), min(transfer.end_s, end)
    x, width = LEFT + (first - start) * scale, max((last - first) * scale, _LEAST_TRANSFER)
    back = transfer.source_stage > transfer.destination_stage
    tip = (
        f"{'gradient' if back else 'activation'} {transfer.microbatch}, stage "
        f"{transfer.source_stage} to {transfer.destination_stage}: "
        f"{seconds_text(transfer.start_s)} to {seconds_text(transfer.end_s)} "
        f"({seconds_text(transfer.end_s - transfer.start_s)})"
    )
    y = transfer.source_mesh * _ROW + _TASK + (_LANE + 1 if back else 0) + 0.5
    return rect((x, y, width, _LANE - 1), "grad" if back else "act", tip)
