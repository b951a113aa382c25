"""The page of what was measured, and the same in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.alpacomm.measured.results import Compared, order
from evaluation.alpacomm.measured.transfers import DEVICES_PER_HOST
from evaluation.machine import Machine
from evaluation.paper.tables import markdown
from meshwise.resharding.cross_mesh.cross_mesh_plan import BEST
from meshwise.resharding.cross_mesh.strategies import BROADCAST
from meshwise.units import seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPage:
    """What a page says.

    Attributes:
        command: The command line.
        machine: Where and when.
        num_hosts: Hosts of the testbed.
        rate_mbit: Rate of each link in Mbit/s.
        mib: The size of each tensor in MiB.
        repeats: How often each transfer was measured.
        stream_bytes_per_s: Rate of a plain TCP stream.
        plain_bytes_per_s: Rate of the plain transfer.
        rows: All transfers.
    """

    command: str
    machine: Machine
    num_hosts: int
    rate_mbit: float
    mib: int
    repeats: int
    stream_bytes_per_s: float
    plain_bytes_per_s: float
    rows: Sequence[Compared]

    def findings(self) -> list[str]:
        """Return what holds and what does not, a sentence each."""
        best = [row for row in self.rows if row.transfer.algorithm == BEST]
        lines: list[str] = []
        if broadcasts := [row for row in best if row.transfer.strategy == BROADCAST]:
            over = [row.measured.least_s / row.bound_s for row in broadcasts]
            lines.append(f"Broadcast takes {_range(over)} of the bound (goal: at most 1.15).")
        over = [row.over_simulation for row in best]
        lines.append(f"Strategies take {_range(over)} of their simulation (goal: within 15 %).")
        if orderings := [row.over_simulation for row in self.rows if row not in best]:
            lines.append(f"Orderings of a broadcast take {_range(orderings)} of theirs.")
        found = order(self.rows)
        lines.append(
            f"Of {found.num_pairs} pairs of ways of one case that differ by more than 10 % in "
            f"simulation, {found.num_pairs - len(found.wrong)} come in that order."
        )
        lines += [
            f"Case {fast.transfer.case.name} comes in the other order: {fast.transfer.way} "
            f"{_seconds(fast)}, {slow.transfer.way} {_seconds(slow)} (measured, simulated)."
            for fast, slow in found.wrong
        ]
        wrong = [row for row in self.rows if not row.is_payload_planned]
        lines.append(
            f"The payload of each host is that of the strategy, to the byte, in "
            f"{len(self.rows) - len(wrong)} of {len(self.rows)} transfers."
        )
        counted = max(row.measured.counted_ratio for row in self.rows)
        lines.append(
            f"Interfaces count at most {100 * (counted - 1):.1f} % more than the payload "
            "(goal: 6 %)."
        )
        return lines

    def text(self) -> str:
        """Return the page."""
        best = [row for row in self.rows if row.transfer.algorithm == BEST]
        others = [row for row in self.rows if row.transfer.algorithm != BEST]
        parts = [
            "# AlpaComm measured",
            f"{self.machine}.\n`{self.command}` writes this page. **Everything is measured** that "
            "is not called simulated or bound.",
            f"{self.num_hosts} hosts are network namespaces of one machine, with links of "
            f"{self.rate_mbit:g} Mbit/s in each direction ([many processes](../hosts.md)). Each is "
            f"a process with {DEVICES_PER_HOST} virtual devices. Tensors have {self.mib} MiB "
            "(case 6 has as much as its hosts divide). Each transfer is made once, its values are "
            f"checked, and then it is measured {self.repeats} times, from one moment for all "
            "processes until the last device has its tile. The shortest time counts.",
            "- **Plain**: the tensor from one device to one of another host, by the same sockets: "
            f"{_rate(self.plain_bytes_per_s)}. A plain TCP stream carries "
            f"{_rate(self.stream_bytes_per_s)}.\n"
            "- **Bound**: payload through the busiest link at the rate of the plain transfer.\n"
            "- **Simulation**: what is sent, on simulated network cards of that rate, without "
            "latency. In brackets the plan by its closed forms.\n"
            "- **Counted**: bytes of an interface, heads of packets and answers too, over its "
            "payload: the largest ratio of all hosts and directions.",
            "## What holds",
            "\n".join(f"- {line}" for line in self.findings()),
            "## Strategies",
            "Each with its best senders and order. A global all-gather to more than two hosts may "
            "be faster than its simulation, which keeps the order of the pieces between two hosts: "
            "a socket sends those that are there before those that are still to come.",
            _table(best),
        ]
        if others:
            parts += [
                "## Senders and order",
                "A broadcast with the senders and the order of each algorithm, where they differ "
                "by more than 10 %.",
                _table(others),
            ]
        return "\n\n".join(part.strip() for part in parts) + "\n"


def _table(rows: Sequence[Compared]) -> str:
    head = ("case", "way", "measured", "simulation (plan)", "ratio", "over the bound", "counted")
    return markdown(
        head,
        [
            (
                row.transfer.case.name,
                row.transfer.way,
                seconds_text(row.measured.least_s),
                f"{seconds_text(row.simulated_s)} ({seconds_text(row.planned_s)})",
                f"{row.over_simulation:.3f}",
                f"{row.measured.least_s / row.bound_s:.3f}",
                f"{row.measured.counted_ratio:.3f}",
            )
            for row in rows
        ],
    )


def _seconds(row: Compared) -> str:
    return f"{seconds_text(row.measured.least_s)}, {seconds_text(row.simulated_s)}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.2f} MB/s"
