"""A schedule as text: one row a mesh, one column a clock."""

from __future__ import annotations

from meshwise.schedules.clocks import clock_times
from meshwise.schedules.schedule import Schedule, Task


def schedule_text(schedule: Schedule) -> str:
    """Return the schedule with one clock for every task; `.` where a mesh waits.

    A cell is the kind and the micro-batch, as `F3`; where a mesh has several stages, the stage
    comes first, as `F1.3`.

    Args:
        schedule: A schedule.

    Raises:
        ProgramError: The order has a deadlock.
    """
    spans = clock_times(schedule)
    several = schedule.num_stages > schedule.num_meshes

    def cell(task: Task) -> str:
        stage = f"{task.stage}." if several else ""
        return f"{task.kind}{stage}{task.microbatch}"

    rows: list[list[str]] = []
    for tasks, times in zip(schedule.tasks, spans, strict=True):
        row: list[str] = []
        for task, span in zip(tasks, times, strict=True):
            row += ["."] * (round(span.start) - len(row))
            row.append(cell(task))
        rows.append(row)
    width = max((len(word) for row in rows for word in row), default=1)
    head = len(f"mesh {schedule.num_meshes - 1}")
    lines = [
        f"{schedule.name}: {schedule.num_stages} stages, {schedule.num_microbatches} micro-batches"
    ]
    for mesh, row in enumerate(rows):
        cells = " ".join(word.ljust(width) for word in row).rstrip()
        lines.append(f"{f'mesh {mesh}'.ljust(head)} | {cells}")
    return "\n".join(lines) + "\n"
