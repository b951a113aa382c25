"""What a run says of each mesh: how long it computed, and how long it waited for transfers."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.simulate.actions import Action, Transfer
from meshwise.simulate.engine import EngineRun

Interval = tuple[float, float]


def busy_s(streams: Sequence[Sequence[Action]]) -> tuple[float, ...]:
    """Return for each mesh the seconds of all its actions.

    Args:
        streams: For each mesh its actions.
    """
    return tuple(sum((action.duration_s for action in stream), 0.0) for stream in streams)


def exposed_s(
    streams: Sequence[Sequence[Action]], transfers: Sequence[Transfer], run: EngineRun
) -> tuple[float, ...]:
    """Return for each mesh the seconds that it idles while a transfer runs that it waits for.

    It waits for the transfers that its next action needs, and for blocking ones from it or to it.

    Args:
        streams: For each mesh its actions.
        transfers: All transfers.
        run: The times of everything that happened.
    """
    blocking: list[list[Interval]] = [[] for _ in streams]
    for transfer, start, end in zip(
        transfers, run.transfer_start_s, run.transfer_end_s, strict=True
    ):
        if transfer.blocking and end > start:
            for mesh in {transfer.source, transfer.destination}:
                blocking[mesh].append((start, end))
    return tuple(
        _exposed(stream, run, mesh, sorted(blocking[mesh])) for mesh, stream in enumerate(streams)
    )


def _exposed(
    stream: Sequence[Action], run: EngineRun, mesh: int, blocking: Sequence[Interval]
) -> float:
    total = before = 0.0
    first = 0
    ends = (*run.end_s[mesh], run.makespan_s)
    starts = (*run.start_s[mesh], run.makespan_s)
    for position, start in enumerate(starts):
        if start > before:
            waits = stream[position].waits if position < len(stream) else ()
            awaited = [(run.transfer_start_s[i], run.transfer_end_s[i]) for i in waits]
            while first < len(blocking) and blocking[first][1] <= before:
                first += 1
            for at in range(first, len(blocking)):
                if blocking[at][0] >= start:
                    break
                awaited.append(blocking[at])
            total += covered(awaited, before, start)
        before = ends[position]
    return total


def covered(intervals: Sequence[Interval], start: float, end: float) -> float:
    """Return how much of the time from `start` to `end` the intervals cover together.

    Args:
        intervals: Pairs of start and end, in seconds.
        start: The start of the time, in seconds.
        end: Its end.
    """
    total, at = 0.0, start
    for first, last in sorted(intervals):
        first, last = max(first, at), min(last, end)
        if last > first:
            total += last - first
            at = last
    return total
