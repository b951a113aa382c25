"""A timeline as a trace for Perfetto or chrome://tracing.

One process a mesh; threads for computing, sending and receiving; a counter for memory.  Slices of
one thread may not overlap there, so transfers at the same time take further threads.

Source: "Trace Event Format" of the Chromium project: `X` slices, `M` names, `C` counters; times in
microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from meshwise.simulate.timeline import ONCE, Timeline, TransferEvent

_Record: TypeAlias = dict[str, object]

_COMPUTE = 0
# Threads of one mesh: 0 computes, from these on the lanes of each direction.
_FIRST_LANE = {"send": 1, "receive": 1001}


def chrome_trace(timeline: Timeline) -> str:
    """Return the trace as JSON; equal timelines give equal text.

    Args:
        timeline: A step, simulated or measured.
    """
    events: list[_Record] = []
    for mesh in range(len(timeline.memory)):
        events.append(_named("process_name", mesh, _COMPUTE, f"mesh {mesh}"))
        events.append(_named("thread_name", mesh, _COMPUTE, "compute"))
    for event in timeline.events:
        microbatch = "" if event.microbatch == ONCE else str(event.microbatch)
        args = {"stage": event.stage, "kind": event.kind}
        if event.microbatch != ONCE:
            args["microbatch"] = event.microbatch
        name = f"{event.kind}{microbatch} stage {event.stage}"
        events.append(_slice(name, event.mesh, _COMPUTE, event.start_s, event.end_s, args))
    for mesh in range(len(timeline.memory)):
        events += _lanes("send", mesh, [t for t in timeline.transfers if t.source_mesh == mesh])
        events += _lanes(
            "receive", mesh, [t for t in timeline.transfers if t.destination_mesh == mesh]
        )
    for mesh, steps in enumerate(timeline.memory):
        for step in steps:
            events.append(
                {
                    "ph": "C",
                    "name": "memory",
                    "pid": mesh,
                    "ts": _ns(step.time_s) / 1000,
                    "args": {"bytes": step.num_bytes},
                }
            )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _lanes(way: str, mesh: int, transfers: Sequence[TransferEvent]) -> list[_Record]:
    """Return slices of one direction, each in the first lane that is free when it starts."""
    slices: list[_Record] = []
    free_ns: list[int] = []
    for t in transfers:
        start = _ns(t.start_s)
        lane = next((i for i, end in enumerate(free_ns) if end <= start), len(free_ns))
        if lane == len(free_ns):
            free_ns.append(0)
        free_ns[lane] = _ns(t.end_s)
        back = t.source_stage > t.destination_stage
        number = "once a step" if t.microbatch == ONCE else t.microbatch
        what = f"{'gradient' if back else 'activation'} {number}"
        args = {
            "microbatch": t.microbatch,
            "bytes": t.num_bytes,
            "from_stage": t.source_stage,
            "to_stage": t.destination_stage,
        }
        name = f"{what} stage {t.source_stage} to {t.destination_stage}"
        slices.append(_slice(name, mesh, _FIRST_LANE[way] + lane, t.start_s, t.end_s, args))
    names = [
        _named("thread_name", mesh, _FIRST_LANE[way] + i, way if i == 0 else f"{way} {i + 1}")
        for i in range(len(free_ns))
    ]
    return names + slices


def _ns(seconds: float) -> int:
    """Return whole nanoseconds, so that what touches still touches after rounding."""
    return round(seconds * 1e9)


def _slice(
    name: str, mesh: int, thread: int, start_s: float, end_s: float, args: Mapping[str, object]
) -> _Record:
    start = _ns(start_s)
    return {
        "ph": "X",
        "name": name,
        "pid": mesh,
        "tid": thread,
        "ts": start / 1000,
        "dur": (_ns(end_s) - start) / 1000,
        "args": args,
    }


def _named(what: str, mesh: int, thread: int, name: str) -> _Record:
    return {"ph": "M", "name": what, "pid": mesh, "tid": thread, "args": {"name": name}}
