"""What the processes of a job did and hold, and the slowest of them, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.plan.text.columns import table, with_more
from meshwise.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStats:
    """What a process did and holds.  What is not known is None.

    Attributes:
        process: Its number.
        name: The name of its machine.
        step_s: Median seconds from one call of the step to the next.
        late_s: Median seconds by which it came to a call after the first process that came.
        busy_s: Seconds in which the busiest of its meshes worked in the last measured step.
        exposed_s: Seconds in which that mesh waited for a transfer.
        held_bytes: Bytes that its fullest device holds; of CPU devices, those of the process.
        peak_bytes: The most that it held so far.
    """

    process: int
    name: str
    step_s: float | None = None
    late_s: float | None = None
    busy_s: float | None = None
    exposed_s: float | None = None
    held_bytes: int | None = None
    peak_bytes: int | None = None

    def __str__(self) -> str:
        """Return which process it is, and where."""
        return f"process {self.process} on {self.name}"

    @property
    def others_wait_s(self) -> float | None:
        """Seconds of a step in which others can have to wait for it: it is late, and it works."""
        known = [x for x in (self.late_s, self.busy_s) if x is not None]
        return sum(known) if known else None


def slowest_host(hosts: Sequence[HostStats]) -> HostStats | None:
    """Return the process that others wait for longest; None where it is alone, or none is known.

    Args:
        hosts: The processes.
    """
    known = [(host.others_wait_s, host) for host in hosts]
    found = [(seconds, host) for seconds, host in known if seconds is not None]
    return max(found, key=lambda pair: pair[0])[1] if len(hosts) > 1 and found else None


def host_columns(hosts: Sequence[HostStats]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of columns, and for each process its cells.

    Args:
        hosts: The processes.
    """
    names = ("process", "machine", "step", "late", "works", "waits", "holds", "peak")
    rows = [
        (
            str(host.process),
            host.name,
            *(
                "?" if x is None else seconds_text(x)
                for x in (host.step_s, host.late_s, host.busy_s, host.exposed_s)
            ),
            *("?" if x is None else bytes_text(x) for x in (host.held_bytes, host.peak_bytes)),
        )
        for host in hosts
    ]
    return names, rows


def slowest_text(hosts: Sequence[HostStats]) -> str:
    """Return the sentence that names the slowest host.

    Args:
        hosts: The processes.
    """
    slowest = slowest_host(hosts)
    if slowest is None:
        return "slowest host: not known"
    parts = {"late": slowest.late_s, "at work": slowest.busy_s}
    known = ", ".join(f"{seconds_text(x)} {name}" for name, x in parts.items() if x is not None)
    return f"slowest host: {slowest} ({known})"


def hosts_text(hosts: Sequence[HostStats]) -> str:
    """Return a table of the processes below the sentence that names the slowest.

    Args:
        hosts: The processes.
    """
    names, rows = host_columns(hosts)
    return "\n".join([slowest_text(hosts), "", *table(names, with_more(rows), "rlrrrrrr")]) + "\n"
