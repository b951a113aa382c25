"""Seconds of the collectives of a compiled program, and how many of them other work hides.

A collective takes what the plan's model of the cluster says of its bytes, merged ones as one.  It
is hidden as far as the instructions beside it last: each of their seconds hides one second of one
collective, first of that which is awaited first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwise.cluster.collectives import ALL_GATHER, COLLECTIVES, collective_terms
from meshwise.cluster.mesh import LogicalMesh
from meshwise.runtime.hlo.beside import Place, async_collectives
from meshwise.runtime.hlo.collectives import HloCollective, hlo_collectives
from meshwise.runtime.hlo.module import parse_module
from meshwise.runtime.hlo.seconds import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCollective:
    """A collective instruction with predicted seconds of one execution.

    Attributes:
        collective: What it sends, and how often.
        seconds: From its start to its end, alone.
        hidden_s: Those of them during which other work runs.
    """

    collective: HloCollective
    seconds: float
    hidden_s: float


def timed_collectives(
    text: str, mesh: LogicalMesh, cycles_per_s: float | None
) -> tuple[TimedCollective, ...]:
    """Return the collectives of a program; a loop of unknown trips counts once.

    Args:
        text: Scheduled HLO text.
        mesh: The mesh of the program.
        cycles_per_s: Clock rate in which the compiler counts costs; None where it says seconds.

    Raises:
        ProgramError: the text cannot be read.
    """
    module = parse_module(text)
    found = hlo_collectives(module, mesh.sizes, unknown_trip_count=1)
    seconds = {(each.computation, each.name): _seconds(each, mesh) for each in found}
    work = Seconds(module, mesh.device, cycles_per_s)
    hidden: dict[Place, float] = {}
    for name, some in async_collectives(module).items():
        computation = module.computations[name]
        left: dict[str, float] = {}
        for sent in some:
            need = seconds.get(sent.place, 0.0)
            for now in sent.beside:
                if need <= 0:
                    break
                has = left[now.name] if now.name in left else work.of(computation, now)
                left[now.name] = max(has - need, 0.0)
                need = max(need - has, 0.0)
            hidden[sent.place] = seconds.get(sent.place, 0.0) - need
    return tuple(
        TimedCollective(
            collective=each,
            seconds=seconds[each.computation, each.name],
            hidden_s=hidden.get((each.computation, each.name), 0.0),
        )
        for each in found
    )


def _seconds(found: HloCollective, mesh: LogicalMesh) -> float:
    """Return the seconds by the plan's model; groups of no axes are a ring over the slowest one."""
    if found.axes is None:
        slowest = min(mesh.axes, key=lambda axis: axis.link_bytes_per_s)
        axes = (replace(slowest, size=found.group_size),)
    else:
        axes = tuple(mesh.axes[a] for a in found.axes)
    kind = found.kind if found.kind in COLLECTIVES else ALL_GATHER
    return min(
        term.latency_s + term.seconds_per_byte * found.num_bytes
        for term in collective_terms(kind, axes)
    )
