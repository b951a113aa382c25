"""What a measured step shows, put together from what each process of a job saw of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from meshwise.runtime.pipeline.traffic import Message
from meshwise.simulate.timeline import Event, MemoryStep, Timeline, TransferEvent


@dataclass(slots=True)
class MeshSeen:
    """What a mesh did.

    Attributes:
        events: Its programs, in order.
        waits: For each transfer that it received its number, and the begin and the end of the wait
            for it, in seconds from the beginning of the step.
        memory: The bytes of its buffers on one device over time.
    """

    events: list[Event] = field(default_factory=list[Event])
    waits: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])
    memory: list[MemoryStep] = field(default_factory=list[MemoryStep])


@dataclass(slots=True)
class Seen:
    """What a process saw of a step.

    Attributes:
        meshes: What its meshes did, by number.
        sent_s: When each transfer that it sent began, in seconds from the beginning of the step.
        arrived_s: When each transfer that it received was there.
        end_s: When the process was done.
    """

    meshes: dict[int, MeshSeen]
    sent_s: dict[int, float] = field(default_factory=dict[int, float])
    arrived_s: dict[int, float] = field(default_factory=dict[int, float])
    end_s: float = 0.0

    def to_json(self, meshes: Collection[int]) -> str:
        """Return what other processes are told: of some of the meshes, and of all transfers."""
        told = asdict(self)
        told["meshes"] = {m: seen for m, seen in told["meshes"].items() if m in meshes}
        return json.dumps(told)

    @classmethod
    def from_json(cls, text: str) -> Seen:
        """Read the text of `to_json`."""
        told: dict[str, Any] = json.loads(text)
        return cls(
            meshes={int(m): _mesh(seen) for m, seen in told["meshes"].items()},
            sent_s={int(n): at for n, at in told["sent_s"].items()},
            arrived_s={int(n): at for n, at in told["arrived_s"].items()},
            end_s=told["end_s"],
        )


def _mesh(told: dict[str, Any]) -> MeshSeen:
    return MeshSeen(
        events=[Event(*event) for event in told["events"]],
        waits=[(n, begin, end) for n, begin, end in told["waits"]],
        memory=[MemoryStep(*step) for step in told["memory"]],
    )


def timeline_of(processes: Sequence[Seen], messages: Sequence[Message]) -> Timeline:
    """Return the timeline of a step.

    Args:
        processes: What each process saw; together they tell of each mesh once.
        messages: The transfers of the step, by number.
    """
    meshes = [seen for _, seen in sorted((m, s) for p in processes for m, s in p.meshes.items())]
    sent: dict[int, float] = {}
    arrived: dict[int, float] = {}
    for process in processes:
        for n, at in process.sent_s.items():
            sent[n] = min(at, sent.get(n, at))
        for n, at in process.arrived_s.items():
            arrived[n] = max(at, arrived.get(n, at))
    end = max(process.end_s for process in processes)
    busy = tuple(sum(e.end_s - e.start_s for e in mesh.events) for mesh in meshes)
    exposed = tuple(
        sum(max(min(arrived[n], end) - max(sent[n], begin), 0.0) for n, begin, end in mesh.waits)
        for mesh in meshes
    )
    transfers = [
        TransferEvent(
            *m[1:6], m.num_bytes, sent[m.transfer], max(arrived[m.transfer], sent[m.transfer])
        )
        for m in messages
        if m.source_mesh != m.destination_mesh
    ]
    return Timeline(
        step_time_s=end,
        bubble_share=1 - sum(busy) / (len(busy) * end),
        busy_s=busy,
        exposed_s=exposed,
        peak_bytes=tuple(max(step.num_bytes for step in mesh.memory) for mesh in meshes),
        memory=tuple(tuple(mesh.memory) for mesh in meshes),
        events=tuple(event for mesh in meshes for event in mesh.events),
        transfers=tuple(sorted(transfers, key=lambda t: t.start_s)),
    )
