"""Where the seconds of a step go: computation, collectives by kind and axes, and waiting."""

from __future__ import annotations

from dataclasses import dataclass

from meshwise.plan.counts.collectives import collective_sums
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

_COMPUTES, _TRANSFERS, _IDLES = "computes", "waits for transfers", "idles"
# Parts of a bar in their order, with the variable of their colour; collectives by kind.
_COLOURS = {
    _COMPUTES: "F",
    "all-gather": "B",
    "reduce-scatter": "W",
    "all-reduce": "act",
    "all-to-all": "grad",
    "permute": "once",
    _TRANSFERS: "limit",
    _IDLES: "idle",
}
_BAR, _GAP, _LEFT, _FOOT = 17, 5, 64, 20
# Of more meshes the first are drawn; all of them count in the table.
_MOST_BARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSeconds:
    """Where the seconds of one mesh go.

    Attributes:
        computes_s: In operators, what they move in their own memory included.
        collectives: For each kind and the axes of its groups: how often it runs, bytes, seconds.
        transfers_s: Idle while a transfer runs that it waits for.
        idle_s: Idle for another reason: the bubble of the pipeline.
    """

    computes_s: float
    collectives: dict[tuple[str, tuple[str, ...]], tuple[int, int, float]]
    transfers_s: float
    idle_s: float

    def parts(self) -> dict[str, float]:
        """Return the seconds of each part of the step; collectives of one kind together."""
        parts = {_COMPUTES: self.computes_s}
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
    timeline = None
    if simulation is not None and plan.schedule != ONE_PROGRAM:
        timeline = simulation.timeline
    result: list[MeshSeconds] = []
    for mesh, collectives in enumerate(found):
        busy_s = plan.step_time_s if timeline is None else timeline.busy_s[mesh]
        waits_s = 0.0 if timeline is None else timeline.exposed_s[mesh]
        whole_s = plan.step_time_s if timeline is None else timeline.step_time_s
        sent_s = sum(seconds for _, _, seconds in collectives.values())
        result.append(
            MeshSeconds(
                computes_s=max(busy_s - sent_s, 0.0),
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
    return (
        "<h2>Where the seconds go</h2><p>One predicted step, mesh by mesh.</p>"
        + legend(keys)
        + _bars(meshes)
        + _table(meshes)
    )


def _bars(meshes: list[MeshSeconds]) -> str:
    shown = meshes[:_MOST_BARS]
    whole_s = max(sum(mesh.parts().values()) for mesh in meshes) or 1.0
    left = _LEFT if len(meshes) > 1 else 0
    scale = (WIDTH - left - 30) / whole_s
    parts: list[str] = []
    for number, mesh in enumerate(shown):
        x, y = float(left), number * (_BAR + _GAP)
        if left:
            parts.append(label(0, y + 13, f"mesh {number}"))
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
        f"mesh {number}: "
        + ", ".join(f"{name} {seconds_text(s)}" for name, s in mesh.parts().items() if s > 0)
        for number, mesh in enumerate(shown)
    )
    size = (WIDTH, foot + _FOOT - 12)
    more = len(meshes) - len(shown)
    return (
        picture("seconds", "Where the seconds of a step go", description, size, parts)
        + (f"<p>And {more} more meshes.</p>" if more else "")
    )  # fmt: skip


def _table(meshes: list[MeshSeconds]) -> str:
    """Return what the mesh does that works longest, dearest first."""
    longest = min(range(len(meshes)), key=lambda k: meshes[k].idle_s + meshes[k].transfers_s)
    mesh = meshes[longest]
    whole_s = sum(mesh.parts().values()) or 1.0
    rows = [
        (f"{kind} over {' '.join(axes)}", str(count), bytes_text(num_bytes), seconds)
        for (kind, axes), (count, num_bytes, seconds) in mesh.collectives.items()
    ]
    rows += [(name, "", "", mesh.parts()[name]) for name in (_COMPUTES, _TRANSFERS, _IDLES)]
    rows = sorted((row for row in rows if row[3] > 0), key=lambda row: -row[3])
    title = f"<p>Mesh {longest}, which works longest:</p>" if len(meshes) > 1 else ""
    cells = [
        (escaped(what), count, num_bytes, seconds_text(seconds), f"{seconds / whole_s:.1%}")
        for what, count, num_bytes, seconds in rows
    ]
    return title + html_table(("", "times", "bytes", "seconds", "of the step"), cells, "wrrrr")
