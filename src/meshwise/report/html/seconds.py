"""Where the seconds of a step go: computation, collectives by kind and axes, and waiting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.plan.counts.collectives import collective_sums
from meshwise.plan.counts.contents import OtherOperators, others_together
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.report.html.markup import (
    WIDTH,
    escaped,
    html_table,
    label,
    legend,
    picture,
    rect,
    ticks,
)
from meshwise.simulate.plan import Simulation
from meshwise.units import bytes_text, seconds_text

# Older plans do not say which of their seconds are those of dense products: all compute.
_COMPUTES = "computes"
_DENSE, _OTHERS = "dense products and convolutions", "other operators"
_TRANSFERS, _IDLES = "waits for transfers", "waits for other stages"
# Parts of a bar in their order, with the variable of their colour; collectives by kind.
_COLOURS = {
    _COMPUTES: "F",
    _DENSE: "F",
    _OTHERS: "light",
    "all-gather": "B",
    "reduce-scatter": "W",
    "all-reduce": "act",
    "all-to-all": "grad",
    "permute": "once",
    _TRANSFERS: "limit",
    _IDLES: "idle",
}
# What is no collective.
_NO_COLLECTIVES = (_COMPUTES, _DENSE, _OTHERS, _TRANSFERS, _IDLES)
_BAR, _GAP, _LEFT, _FOOT = 17, 5, 64, 20
# Of more meshes the first are drawn; all of them count in the table.
_MOST_BARS = 40
# So many other operators are named beside their sum.
_MOST_OTHERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSeconds:
    """Where the seconds of one mesh go.

    Attributes:
        dense_s: In dense products and convolutions.
        others_s: In other operators: element-wise, reductions, what moves in a device's memory.
        collectives: For each kind and the axes of its groups: how often it runs, bytes, seconds.
        others: Those other operators that take most, dearest first.
        transfers_s: Idle while a transfer runs that it waits for.
        idle_s: Idle for another reason. Together they are the bubble of the pipeline.
    """

    dense_s: float
    others_s: float
    others: tuple[OtherOperators, ...]
    collectives: dict[tuple[str, tuple[str, ...]], tuple[int, int, float]]
    transfers_s: float
    idle_s: float

    @property
    def computes_s(self) -> float:
        """Seconds in operators."""
        return self.dense_s + self.others_s

    @property
    def collectives_s(self) -> float:
        """Seconds in collectives."""
        return math.fsum(seconds for _, _, seconds in self.collectives.values())

    def parts(self) -> dict[str, float]:
        """Return the seconds of each part of the step; collectives of one kind together."""
        parts = {_DENSE: self.dense_s, _OTHERS: self.others_s}
        if not self.dense_s:
            parts = {_COMPUTES: self.others_s}
        for (kind, _), (_, _, seconds) in self.collectives.items():
            parts[kind] = parts.get(kind, 0.0) + seconds
        return parts | {_TRANSFERS: self.transfers_s, _IDLES: self.idle_s}


def mesh_seconds(plan: Plan, simulation: Simulation | None) -> list[MeshSeconds]:
    """Return for each mesh where its seconds go.

    What a mesh does takes as long as it is busy in the simulated step, collectives as long as the
    model says; what is left of the one beside the other is computation.

    Args:
        plan: The plan.
        simulation: Its simulated step; None for a step that is one program.
    """
    found: list[dict[tuple[str, tuple[str, ...]], tuple[int, int, float]]]
    found = [{} for _ in range(plan.num_meshes)]
    sums = collective_sums(plan.collectives, [stage.mesh for stage in plan.stages])
    for (stage, kind, axes, _), (count, num_bytes, seconds) in sums.items():
        mine = found[plan.mesh_of_stage[stage]]
        before = mine.get((kind, axes), (0, 0, 0.0))
        mine[kind, axes] = (before[0] + count, before[1] + num_bytes, before[2] + seconds)
    dense_s = [0.0] * plan.num_meshes
    others: list[list[OtherOperators]] = [[] for _ in range(plan.num_meshes)]
    for mesh, stage in zip(plan.mesh_of_stage, plan.stages, strict=True):
        dense_s[mesh] += sum(max(item.compute_s, item.memory_s) for item in stage.dense)
        others[mesh] += stage.others
    timeline = None
    if simulation is not None and plan.schedule != ONE_PROGRAM:
        timeline = simulation.timeline
    result: list[MeshSeconds] = []
    for mesh, collectives in enumerate(found):
        busy_s = plan.step_time_s if timeline is None else timeline.busy_s[mesh]
        waits_s = 0.0 if timeline is None else timeline.exposed_s[mesh]
        whole_s = plan.step_time_s if timeline is None else timeline.step_time_s
        sent_s = sum(seconds for _, _, seconds in collectives.values())
        computes_s = max(busy_s - sent_s, 0.0)
        dense_here_s = min(dense_s[mesh], computes_s)
        result.append(
            MeshSeconds(
                dense_s=dense_here_s,
                others_s=computes_s - dense_here_s,
                others=others_together(others[mesh])[:_MOST_OTHERS],
                collectives=collectives,
                transfers_s=waits_s,
                idle_s=max(whole_s - busy_s - waits_s, 0.0),
            )
        )
    return result


def seconds_section(plan: Plan, simulation: Simulation | None) -> str:
    """Return the section of the page."""
    meshes = mesh_seconds(plan, simulation)
    used = {name for mesh in meshes for name, seconds in mesh.parts().items() if seconds > 0}
    keys = [(f"var(--{colour})", name) for name, colour in _COLOURS.items() if name in used]
    noun = "mesh" if simulation is None else simulation.of_timeline
    says = f"One predicted step, {noun} by {noun}." if len(meshes) > 1 else "One predicted step."
    if any(mesh.idle_s or mesh.transfers_s for mesh in meshes):
        says += " Where devices wait, for transfers or for other stages, is the bubble."
    if _OTHERS in used:
        says += (
            " Other operators are those that are no matrix products or convolutions: element-wise "
            "ones, reductions, moves within the memory of a device."
        )
    if any(stage.others for stage in plan.stages):
        says += " Their source lines stand in the text below, under <em>Seconds of a step</em>."
    return (
        f"<h2>Where the seconds go</h2><p>{says}</p>"
        + legend(keys)
        + _bars(meshes, noun)
        + _table(meshes, noun)
    )


def busiest(meshes: Sequence[MeshSeconds]) -> MeshSeconds:
    """Return the mesh that waits least, the first of equals.

    Args:
        meshes: The meshes of a plan.
    """
    return min(meshes, key=lambda mesh: mesh.idle_s + mesh.transfers_s)


def _bars(meshes: list[MeshSeconds], noun: str) -> str:
    shown = meshes[:_MOST_BARS]
    whole_s = max(sum(mesh.parts().values()) for mesh in meshes) or 1.0
    left = _LEFT if len(meshes) > 1 else 0
    scale = (WIDTH - left - 30) / whole_s
    parts: list[str] = []
    for number, mesh in enumerate(shown):
        x, y = float(left), number * (_BAR + _GAP)
        if left:
            parts.append(label(0, y + 13, f"{noun} {number}"))
        seconds_of = mesh.parts()
        for name, colour in _COLOURS.items():
            seconds = seconds_of.get(name, 0.0)
            if seconds <= 0:
                continue
            tip = f"{name}: {seconds_text(seconds)}, {seconds / whole_s:.1%} of the step"
            parts.append(rect((x, y, seconds * scale, _BAR), f"of-{colour}", tip))
            x += seconds * scale
    foot = len(shown) * (_BAR + _GAP) + 12
    parts += [
        label(left + tick * scale, foot, seconds_text(tick), "m") for tick in ticks(0.0, whole_s, 8)
    ]
    description = "; ".join(
        f"{noun} {number}: "
        + ", ".join(f"{name} {seconds_text(s)}" for name, s in mesh.parts().items() if s > 0)
        for number, mesh in enumerate(shown)
    )
    size = (WIDTH, foot + _FOOT - 12)
    more = len(meshes) - len(shown)
    return (
        picture("seconds", "Where the seconds of a step go", description, size, parts)
        + (f"<p>And {more} more.</p>" if more else "")
    )  # fmt: skip


def _table(meshes: list[MeshSeconds], noun: str) -> str:
    """Return what the mesh does that works longest, dearest first."""
    mesh = busiest(meshes)
    longest = meshes.index(mesh)
    whole_s = sum(mesh.parts().values()) or 1.0
    rows = [
        (f"{kind} over {' '.join(axes)}", str(count), bytes_text(num_bytes), seconds)
        for (kind, axes), (count, num_bytes, seconds) in mesh.collectives.items()
    ]
    own = mesh.parts()
    rows += [(name, "", "", own[name]) for name in _NO_COLLECTIVES if name in own]
    rows = sorted((row for row in rows if row[3] > 0), key=lambda row: -row[3])
    title = (
        f"<p>{noun.capitalize()} {longest}, which is busy longest:</p>" if len(meshes) > 1 else ""
    )
    most = "; ".join(f"{item.where} {seconds_text(item.seconds)}" for item in mesh.others)
    names = {_OTHERS: f"{_OTHERS}<small>most in {escaped(most)}</small>"} if most else {}
    cells = [
        (
            names.get(what, escaped(what)),
            count,
            num_bytes,
            seconds_text(seconds),
            f"{seconds / whole_s:.1%}",
        )
        for what, count, num_bytes, seconds in rows
    ]
    return title + html_table(("", "times", "bytes", "seconds", "of the step"), cells, "wrrrr")
