"""Streams with names, for tests of the engine by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwise.simulate.engine import EngineRun, run_streams
from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.measure import exposed_s
from meshwise.simulate.streams import Streams, Transfers, lists, messages_of


class Transfer(NamedTuple):
    """A message from one mesh to another, of a kind of its own."""

    source: int
    destination: int
    flows: tuple[Flow, ...] = ()
    blocking: bool = False


class Action(NamedTuple):
    """Something that a mesh does: its seconds, its transfers, and changes of memory."""

    duration_s: float
    waits: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    start_bytes: int = 0
    end_bytes: int = 0


class Outcome(NamedTuple):
    """What happened, and what each mesh waited for."""

    run: EngineRun
    exposed_s: tuple[float, ...]

    @property
    def starts(self) -> list[list[float]]:
        """For each mesh the start of each action."""
        first = self.run.streams.first[1:-1]
        return [part.tolist() for part in np.split(self.run.start_s, first)]

    @property
    def transfer_times(self) -> list[tuple[float, float]]:
        """For each transfer its start and its end."""
        run = self.run
        pairs = zip(run.transfer_start_s.tolist(), run.transfer_end_s.tolist(), strict=True)
        return list(pairs)


def outcome(
    streams: Sequence[Sequence[Action]],
    transfers: Sequence[Transfer],
    hosts: Sequence[HostLinks],
    resident: Sequence[int] | None = None,
) -> Outcome:
    """Simulate; meshes have nothing in memory at the start by default."""
    every = [action for stream in streams for action in stream]
    given = Streams(
        np.cumsum([0, *map(len, streams)], dtype=np.int64),
        np.array([a.duration_s for a in every], np.float64),
        np.array([a.start_bytes for a in every], np.int64),
        np.array([a.end_bytes for a in every], np.int64),
        *lists([a.waits for a in every]),
        *lists([a.makes for a in every]),
    )
    ends = np.array([(t.source, t.destination) for t in transfers], np.int64).reshape(-1, 2)
    kinds = messages_of([(t.flows, t.blocking) for t in transfers])
    moved = Transfers(ends[:, 0], ends[:, 1], np.arange(len(transfers)))
    held = np.array(resident or [0] * len(streams), np.int64)
    run = run_streams(given, moved, kinds, hosts, held)
    return Outcome(run, exposed_s(run, moved, kinds))
