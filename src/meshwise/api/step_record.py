"""What a process remembers of the calls of a step, and what the processes of a job tell of them."""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax

from meshwise.report.host_stats import HostStats, slowest_host
from meshwise.runtime.device_memory import held_memory
from meshwise.runtime.job.job import Job
from meshwise.simulate.timeline import Timeline

if TYPE_CHECKING:
    from meshwise.runtime.step_executable import StepExecutable

# Medians are of so many calls, the latest ones.
_NUM_CALLS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a process tells of itself.

    Attributes:
        name: The name of its machine.
        calls_s: When the latest calls began, in seconds from a moment that all processes share;
            None after one that was measured.
        busy_s: As in `HostStats`.
        exposed_s: Likewise.
        held_bytes: Likewise.
        peak_bytes: Likewise.
        program_bytes: What XLA reports for the programs of the process, of the worst device.
    """

    name: str
    calls_s: Sequence[float | None]
    busy_s: float | None
    exposed_s: float | None
    held_bytes: int | None
    peak_bytes: int | None
    program_bytes: int


class StepRecord:
    """When the calls of a step began, and what the last measured one showed."""

    def __init__(self) -> None:
        """No step has run."""
        self._executable: StepExecutable | None = None
        self._calls_s: deque[float | None] = deque(maxlen=_NUM_CALLS)
        self._timeline: Timeline | None = None
        self._here: frozenset[int] = frozenset()

    def called(self, executable: StepExecutable, begin_s: float) -> None:
        """Note a call.  The first one of a program, which was compiled in it, does not count.

        Args:
            executable: What ran.
            begin_s: When it began, on `time.perf_counter`.
        """
        if executable is self._executable:
            self._calls_s.append(begin_s)
        else:
            self._executable = executable
            self._calls_s.clear()

    def measured(
        self,
        executable: StepExecutable,
        begin_s: float,
        timeline: Timeline,
        here: frozenset[int],
    ) -> None:
        """Note a call with a clock beside it.

        Args:
            executable: What ran.
            begin_s: When it began, on `time.perf_counter`.
            timeline: What it showed, of all meshes.
            here: The meshes with devices of this process.
        """
        self.called(executable, begin_s)
        # It takes longer than the others.
        self._calls_s.append(None)
        self._timeline, self._here = timeline, here

    def stats(self, executable: StepExecutable, job: Job | None, name: str) -> dict[str, Any]:
        """Return what `ParallelStep.stats` does; all processes of a job call it.

        Args:
            executable: What ran last.
            job: The processes; None: this one alone.
            name: The name of the step, for messages.

        Raises:
            ClusterError: a process does not come.
        """
        if job is not None:
            # All leave here at one moment, to about a millisecond, whatever their clocks say.
            job.exchange(f"stats of {name}", "")
        told = [self._told(executable, time.perf_counter())]
        if job is not None:
            mine = json.dumps(asdict(told[0]))
            texts = job.exchange(f"what processes tell in stats of {name}", mine)
            told = [Told(**json.loads(text)) for text in texts]
        hosts = hosts_of(told)
        found: dict[str, Any] = {
            "predicted_step_time_s": executable.plan.step_time_s,
            "predicted_peak_bytes": float(executable.plan.peak_bytes),
            "measured_peak_bytes": float(max(process.program_bytes for process in told)),
            "compile_s": executable.compile_s,
            **executable.traffic(),
            "hosts": hosts,
        }
        if (slowest := slowest_host(hosts)) is not None:
            found["slowest_host"] = str(slowest)
        if self._timeline is not None:
            found["measured_step_s"] = self._timeline.step_time_s
            for key in ("bubble_share", "busy_s", "exposed_s"):
                found[key] = getattr(self._timeline, key)
        return found

    def _told(self, executable: StepExecutable, now_s: float) -> Told:
        busy_s = exposed_s = None
        if self._timeline is not None and self._here:
            busiest = max(self._here, key=self._timeline.busy_s.__getitem__)
            busy_s, exposed_s = self._timeline.busy_s[busiest], self._timeline.exposed_s[busiest]
        memory = held_memory(jax.local_devices())
        return Told(
            name=socket.gethostname(),
            calls_s=[None if at is None else at - now_s for at in self._calls_s],
            busy_s=busy_s,
            exposed_s=exposed_s,
            held_bytes=memory.held_bytes,
            peak_bytes=memory.peak_bytes,
            program_bytes=executable.measured_peak_bytes(),
        )


def hosts_of(told: Sequence[Told]) -> tuple[HostStats, ...]:
    """Return what the processes of a job did and hold.

    Args:
        told: What each tells of itself.
    """
    # All have made the same calls, and are told of as many of them.
    together = list(zip(*(reversed(process.calls_s) for process in told), strict=False))
    first = [min(at for at in call if at is not None) for call in together if None not in call]
    hosts: list[HostStats] = []
    for number, process in enumerate(told):
        calls = [call[number] for call in together if None not in call]
        late = [at - soonest for at, soonest in zip(calls, first, strict=True) if at is not None]
        steps = [b - a for a, b in pairwise(process.calls_s) if a is not None and b is not None]
        hosts.append(
            HostStats(
                process=number,
                name=process.name,
                step_s=statistics.median(steps) if steps else None,
                late_s=statistics.median(late) if late and len(told) > 1 else None,
                busy_s=process.busy_s,
                exposed_s=process.exposed_s,
                held_bytes=process.held_bytes,
                peak_bytes=process.peak_bytes,
            )
        )
    return tuple(hosts)
