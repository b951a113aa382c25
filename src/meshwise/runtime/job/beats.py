"""Signs of life of the processes of a job, and what follows where one gives none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

# Between two beats of a process.
BEAT_S = 0.5
# A process without a beat for so long is gone, so that all know it within 10 s: what beats and what
# looks may each be late.  A link that was down for 5 s carries beats again after 6 to 8 s.
SILENT_S = 9.0
LEAST_SILENT_S = 3.0
# Likewise where an error of another process says that some process may have died.
LOST_S = 3.5
# How long a process may wait in a step for what others do, before a user is told; and how long
# where one of the others has ended.
SLOW_S = (20.0, 60.0)
LEFT_S = 20.0

BeatState = Literal["runs", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a process says of itself from time to time.

    Attributes:
        number: Grows with each beat.
        state: Whether it runs, or came to its end.
        place: What it is at.
        waits_s: How long it has waited there for others, in seconds; 0 outside of steps, and where
            steps take as long.
    """

    number: int
    state: BeatState = "runs"
    place: str = ""
    waits_s: float = 0.0

    def to_bytes(self) -> bytes:
        """Return the beat as others read it."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(text: bytes) -> Beat:
        """Read a beat."""
        return Beat(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What ends a job.

    Attributes:
        process: The process that is the cause.
        text: What happened.
    """

    process: int
    text: str

    def to_bytes(self) -> bytes:
        """Return the fault as others read it."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(text: bytes) -> Fault:
        """Read a fault."""
        return Fault(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The last beat of a process, and when it was first seen, in seconds."""

    beat: Beat
    since_s: float


class Observer:
    """Sees the beats of other processes, and says which process is gone.  It reads no clock."""

    def __init__(self, own: int) -> None:
        """Nothing is seen yet.

        Args:
            own: The number of this process.
        """
        self._own = own
        self._seen: dict[int, _Seen] = {}
        self._told: dict[int, int] = {}

    def see(self, beats: Mapping[int, Beat], now_s: float) -> None:
        """Note the beats that are there.

        Args:
            beats: By process.
            now_s: The time, seconds.
        """
        for process, beat in beats.items():
            before = self._seen.get(process)
            if before is None or before.beat.number != beat.number:
                self._seen[process] = _Seen(beat=beat, since_s=now_s)

    def wake(self, now_s: float) -> None:
        """Begin to count anew: this process stood still, and has missed the beats of the others.

        Args:
            now_s: The time, seconds.
        """
        self._seen = {
            n: _Seen(beat=seen.beat, since_s=max(seen.since_s, now_s))
            for n, seen in self._seen.items()
        }

    def fault(self, now_s: float, *, silent_s: float = SILENT_S) -> Fault | None:
        """Return what must end the job; None if nothing must.

        Args:
            now_s: The time, seconds.
            silent_s: A process without a beat for longer is gone.
        """
        running = {n: seen for n, seen in self._seen.items() if seen.beat.state == "runs"}
        for process, seen in sorted(running.items()):
            silence_s = now_s - seen.since_s
            if process != self._own and silence_s > silent_s:
                return Fault(
                    process=process,
                    text=f"process {process} has given no sign of life for {silence_s:.0f} s, and "
                    f"was {seen.beat.place or 'outside of any step'}; start the job again from its "
                    "last checkpoint",
                )
        ended = sorted(self._seen.keys() - running.keys())
        for process, seen in sorted(running.items()):
            if ended and seen.beat.waits_s > LEFT_S:
                return Fault(
                    process=ended[0],
                    text=f"process {ended[0]} has ended, and process {process} has waited for "
                    f"{seen.beat.waits_s:.0f} s {seen.beat.place}",
                )
        return None

    def slow(self) -> list[str]:
        """Return which processes wait long, a text each; each of them once for each limit."""
        found: list[str] = []
        for process, seen in sorted(self._seen.items()):
            passed = sum(seen.beat.waits_s > limit for limit in SLOW_S)
            if passed > self._told.get(process, 0):
                found.append(
                    f"process {process} has waited for {seen.beat.waits_s:.0f} s {seen.beat.place}"
                )
            self._told[process] = passed
        return found
