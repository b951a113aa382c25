"""What fills the memory of the device that holds most, as rows for texts and pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwise.graph.layout import local_shape
from meshwise.plan.peak_part import PeakPart
from meshwise.plan.record import PlanRecord
from meshwise.plan.stage import Stage
from meshwise.plan.text.columns import table
from meshwise.plan.text.device_memory import plan_memory
from meshwise.units import bytes_text

ROLES = {
    "input": "arguments",
    "value": "values",
    "copy": "copies of values",
    "gradients": "gradient sums",
    "prepared": "weights gathered or cast once a step",
    "gradients and prepared": "gradient sums; weights gathered or cast once a step",
    "activations": "micro-batches in flight",
    "late": "weights apart",
    "waiting": "not yet read",
    "temporary": "temporary",
    "rest": "all else",
}
# Of a path of an argument its number and first key, as `0/params`.
_KEYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledMemory:
    """The memory of one device at its peak.

    Attributes:
        of: Of which stages, as `, stage 0`; empty for a step that is one program.
        parts: What fills it, largest first.
        peak_bytes: All of it.
    """

    of: str
    parts: tuple[PeakPart, ...]
    peak_bytes: int


def filled_memory(plan: PlanRecord) -> FilledMemory | None:
    """Return what fills the device that holds most; None for plans that do not say it.

    Args:
        plan: The plan.
    """
    if plan.peak_parts:
        return FilledMemory(of="", parts=plan.peak_parts, peak_bytes=plan.peak_bytes)
    if not any(stage.microbatch_bytes for stage in plan.stages):
        return None
    fullest = max(plan_memory(plan).meshes, key=lambda mesh: mesh.peak_bytes)
    stages = [plan.stages[number] for number in fullest.stages]
    return FilledMemory(
        of="" if len(plan.stages) == 1 else f", {fullest.name}",
        parts=_of_stages(stages, fullest.peak_bytes),
        peak_bytes=fullest.peak_bytes,
    )


def _of_stages(stages: Sequence[Stage], peak_bytes: int) -> tuple[PeakPart, ...]:
    """Return the parts of the peak of a mesh, largest first."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for role, where, count, num_bytes in (row for stage in stages for row in _rows(stage)):
        before = sums.get((role, where), (0, 0))
        sums[role, where] = before[0] + count, before[1] + num_bytes
    temporary = peak_bytes - sum(num_bytes for _, num_bytes in sums.values())
    sums["temporary", ""] = 0, temporary
    parts = [
        PeakPart(role=role, where=where, count=count, num_bytes=num_bytes)
        for (role, where), (count, num_bytes) in sums.items()
        if num_bytes > 0
    ]
    return tuple(sorted(parts, key=lambda part: (-part.num_bytes, part.role, part.where)))


def _rows(stage: Stage) -> Iterator[tuple[str, str, int, int]]:
    """Yield what a stage holds at the peak of its mesh: role, path, number, bytes."""
    state = 0
    for argument in stage.arguments:
        if argument.in_host:
            continue
        shape = local_shape(argument.shape, argument.layout, stage.mesh.sizes)
        num_bytes = math.prod(shape) * argument.itemsize
        state += num_bytes
        yield "input", "/".join(argument.name.split("/")[:_KEYS]), 1, num_bytes
    if stage.gradient_bytes is None:
        yield "gradients and prepared", "", 0, stage.resident_bytes - state
    else:
        yield "gradients", "", 0, stage.gradient_bytes
        yield "prepared", "", 0, stage.resident_bytes - state - stage.gradient_bytes
    yield "activations", "", stage.in_flight, stage.in_flight * stage.microbatch_bytes
    yield "late", "", 0, stage.late_bytes
    yield "waiting", "", 0, stage.waiting_bytes


def parts_lines(filled: FilledMemory) -> list[str]:
    """Return the parts as a table.

    Args:
        filled: The memory.
    """
    rows = [
        (
            ROLES.get(part.role, part.role),
            part.where,
            str(part.count) if part.count else "",
            bytes_text(part.num_bytes),
            f"{part.num_bytes / filled.peak_bytes:.1%}",
        )
        for part in filled.parts
    ]
    return table(("what", "of", "number", "bytes", "share"), rows, "llrrr")
