"""Collectives of a plan beside those of its compiled programs: bytes, number, seconds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwise.cluster.mesh import LogicalMesh
from meshwise.plan.counts.collectives import collective_s
from meshwise.plan.plan import Plan
from meshwise.plan.text.columns import WIDTH, table
from meshwise.targets.hidden import TimedCollective, timed_collectives
from meshwise.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCollectives:
    """Collectives of one kind over the same axes, in all programs of a step.

    All seconds are predictions of the plan's model of the cluster, summed over stages.

    Attributes:
        kind: As "all-reduce".
        axes: Names of the mesh axes; empty where the groups are those of no axes.
        planned_bytes: Bytes a step by the plan (B of docs/facts.md section 1).
        planned_number: Collectives that the plan lists, each once.
        planned_s: Seconds a step of these, one after the other.
        compiled_bytes: Bytes a step in the compiled programs.
        compiled_number: Instructions in the compiled programs: less where several were merged.
        compiled_s: Seconds a step of these, one after the other.
        merged: Arrays that one instruction sends, at most.
        hidden_s: Seconds of `compiled_s` during which other work runs, by the compiled schedule.
    """

    kind: str
    axes: tuple[str, ...]
    planned_bytes: int = 0
    planned_number: int = 0
    planned_s: float = 0.0
    compiled_bytes: int = 0
    compiled_number: int = 0
    compiled_s: float = 0.0
    merged: int = 0
    hidden_s: float = 0.0


class ProgramRuns(NamedTuple):
    """A compiled program.

    Attributes:
        mesh: What it runs on.
        text: Scheduled HLO.
        num_runs: Runs in a step.
        cycles_per_s: Clock rate in which the compiler counts costs; None where it says seconds.
    """

    mesh: LogicalMesh
    text: str
    num_runs: int
    cycles_per_s: float | None


def verified_collectives(
    plan: Plan, programs: Iterable[ProgramRuns]
) -> tuple[VerifiedCollectives, ...]:
    """Return the collectives of a plan and of its compiled programs, by kind and axes.

    Args:
        plan: The plan.
        programs: Its programs.

    Raises:
        ProgramError: the text of a program cannot be read.
    """
    found: dict[tuple[str, tuple[str, ...]], list[VerifiedCollectives]] = {}
    for part in (*_planned(plan), *_compiled(programs)):
        found.setdefault((part.kind, part.axes), []).append(part)
    return tuple(
        VerifiedCollectives(
            kind=kind,
            axes=axes,
            planned_bytes=sum(part.planned_bytes for part in parts),
            planned_number=sum(part.planned_number for part in parts),
            planned_s=math.fsum(part.planned_s for part in parts),
            compiled_bytes=sum(part.compiled_bytes for part in parts),
            compiled_number=sum(part.compiled_number for part in parts),
            compiled_s=math.fsum(part.compiled_s for part in parts),
            merged=max(part.merged for part in parts),
            hidden_s=math.fsum(part.hidden_s for part in parts),
        )
        for (kind, axes), parts in found.items()
    )


def _planned(plan: Plan) -> Iterator[VerifiedCollectives]:
    for item in plan.collectives:
        mesh = plan.stages[item.stage].mesh
        yield VerifiedCollectives(
            kind=item.kind,
            axes=tuple(sorted(item.axes, key=mesh.names.index)),
            planned_bytes=item.num_bytes * item.count,
            planned_number=1,
            planned_s=collective_s(item, mesh) * item.count,
        )


def _compiled(programs: Iterable[ProgramRuns]) -> Iterator[VerifiedCollectives]:
    timed: dict[tuple[LogicalMesh, str], tuple[TimedCollective, ...]] = {}
    for mesh, text, num_runs, cycles_per_s in programs:
        if (mesh, text) not in timed:
            timed[mesh, text] = timed_collectives(text, mesh, cycles_per_s)
        for each in timed[mesh, text]:
            item = each.collective
            count = item.count * num_runs
            yield VerifiedCollectives(
                kind=item.kind,
                axes=tuple(mesh.names[a] for a in item.axes or ()),
                compiled_bytes=item.num_bytes * count,
                compiled_number=1,
                compiled_s=each.seconds * count,
                merged=item.num_arrays,
                hidden_s=each.hidden_s * count,
            )


def collectives_text(collectives: Sequence[VerifiedCollectives]) -> list[str]:
    """Return the lines of a table, and what merging and hiding are predicted to save.

    Args:
        collectives: The collectives.
    """
    head = ("collective", "axes", "planned", "number", "compiled", "number", "merged")
    rows = [
        (
            item.kind,
            ", ".join(item.axes) or "-",
            bytes_text(item.planned_bytes),
            str(item.planned_number),
            bytes_text(item.compiled_bytes),
            str(item.compiled_number),
            f"{item.merged} in 1" if item.merged > 1 else "-",
            seconds_text(item.compiled_s),
            seconds_text(item.hidden_s),
        )
        for item in collectives
    ]
    planned, compiled, hidden = (
        math.fsum(values)
        for values in zip(
            *((item.planned_s, item.compiled_s, item.hidden_s) for item in collectives),
            strict=True,
        )
    )
    summary = (
        f"Predicted, not measured, and summed over all stages: the planned collectives of a step "
        f"take {seconds_text(planned)} one by one, the compiled ones {seconds_text(compiled)}. "
        f"During {seconds_text(hidden)} of these other work runs; "
        f"{seconds_text(compiled - hidden)} are not hidden."
    )
    lines = table((*head, "seconds", "hidden"), rows, "llrrrrrrr")
    return [*lines, "", *textwrap.wrap(summary, WIDTH)]
