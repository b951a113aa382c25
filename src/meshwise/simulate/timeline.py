"""The timeline of a step, as simulated or as measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FORWARD = "F"
BACKWARD = "B"
WEIGHT = "W"
SYNC = "sync"
APPLY = "apply"

# Micro-batch of what is done once a step.
ONCE = -1


class MemoryStep(NamedTuple):
    """Bytes in use from `time_s` on."""

    time_s: float
    num_bytes: int


class Event(NamedTuple):
    """A task, or a part of the update, that a mesh ran.

    Attributes:
        mesh: The number of the mesh.
        kind: `F`, `B`, `W`, `apply` (the update, once a step), or `sync` (what else runs once a
            step, as it was measured).
        stage: The number of the stage.
        microbatch: The number of the micro-batch; `ONCE` for `sync` and `apply`.
        start_s: Seconds from the start of the step to its start.
        end_s: Seconds from the start of the step to its end.
    """

    mesh: int
    kind: str
    stage: int
    microbatch: int
    start_s: float
    end_s: float


class TransferEvent(NamedTuple):
    """One micro-batch's tensors on their way from one stage to another.

    Attributes:
        source_mesh: The mesh that sends.
        destination_mesh: The mesh that receives.
        source_stage: The stage whose result it is.
        destination_stage: The stage that waits for it; the lower one if it is a gradient.
        microbatch: The number of the micro-batch.
        num_bytes: Bytes of all flows together.
        start_s: Seconds from the start of the step to its start, its latency included.
        end_s: Seconds from the start of the step to its end.
    """

    source_mesh: int
    destination_mesh: int
    source_stage: int
    destination_stage: int
    microbatch: int
    num_bytes: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The timeline of one step.

    Attributes:
        step_time_s: Seconds until the last mesh is done and the last transfer has arrived.
        bubble_share: Share of all meshes' time in which they do nothing, 0 to 1; to wait for
            transfers is nothing.
        busy_s: For each mesh the seconds in which it works.
        exposed_s: For each mesh the seconds in which it idles while a transfer runs that it
            waits for.
        peak_bytes: For each mesh the most memory of one device.
        memory: For each mesh the memory of one device over time.
        events: What the meshes did, mesh by mesh, each in order.
        transfers: What moved between stages, in order of start; none where nothing had to move.
    """

    step_time_s: float
    bubble_share: float
    busy_s: tuple[float, ...]
    exposed_s: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    memory: tuple[tuple[MemoryStep, ...], ...]
    events: tuple[Event, ...]
    transfers: tuple[TransferEvent, ...]
