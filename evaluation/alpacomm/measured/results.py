"""What transfers took and sent, beside their plans and simulations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.alpacomm.measured.transfers import (
    DIFFERENCE,
    PLAIN_CASE,
    MeasuredTransfer,
    sized_case,
)
from evaluation.alpacomm.simulated import simulated
from meshwise.simulate.links import HostLinks

# The way of the largest plain transfer: one array from device to device, as it is.
PLAIN = "plain"
_MARK = "measured "
# What passes inside a host is neglected.
_INSIDE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A transfer that was measured several times.

    Attributes:
        case: The name of the case.
        way: How it was sent.
        seconds: For each time.
        received_bytes: For each host the payload that it was sent, all times together.
        sent_bytes: For each host the payload that it sent, all times together.
        counted_received: For each host what its interface counted as received, in bytes.
        counted_sent: For each host what its interface counted as sent, in bytes.
    """

    case: str
    way: str
    seconds: tuple[float, ...]
    received_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    counted_received: tuple[int, ...]
    counted_sent: tuple[int, ...]

    @property
    def least_s(self) -> float:
        """The shortest time."""
        return min(self.seconds)

    @property
    def counted_ratio(self) -> float:
        """The largest ratio of what an interface counted to the payload, of all that had some."""
        ways = (self.received_bytes, self.counted_received), (self.sent_bytes, self.counted_sent)
        return max(
            counted / payload
            for payloads, counts in ways
            for payload, counted in zip(payloads, counts, strict=True)
            if payload
        )


def line_of(found: Measured) -> str:
    """Return a result as a line; `from_line` reads it."""
    return _MARK + json.dumps(asdict(found))


def from_line(line: str) -> Measured | None:
    """Return the result that a line says; None if it is another line."""
    if not line.startswith(_MARK):
        return None
    fields: dict[str, Any] = json.loads(line.removeprefix(_MARK))
    for name, value in fields.items():
        if isinstance(value, list):
            fields[name] = tuple(value)
    return Measured(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A measured transfer beside what was expected of it.

    Attributes:
        transfer: The transfer.
        measured: What it took.
        planned_s: By the closed forms, at the rate of the plain transfer.
        simulated_s: Of its route on simulated network cards of that rate.
        bound_s: Payload through the busiest link at that rate.
        is_payload_planned: Whether each host was sent what the strategy says, to the byte.
    """

    transfer: MeasuredTransfer
    measured: Measured
    planned_s: float
    simulated_s: float
    bound_s: float
    is_payload_planned: bool

    @property
    def over_simulation(self) -> float:
        """Measured over simulated seconds."""
        return self.measured.least_s / self.simulated_s


def plain_rate(found: Iterable[Measured], mib: int) -> float:
    """Return the rate of the largest plain transfer, in bytes a second.

    Args:
        found: Results, with those of plain transfers.
        mib: The size of tensors in MiB.
    """
    num_bytes = sized_case(PLAIN_CASE, mib).num_bytes
    return num_bytes / min(each.least_s for each in found if each.way == PLAIN)


def compared(
    transfers: Sequence[MeasuredTransfer], found: Sequence[Measured], bytes_per_s: float
) -> list[Compared]:
    """Compare what was measured with plans and simulations.

    Args:
        transfers: What was to be measured.
        found: What was.
        bytes_per_s: The rate of the plain transfer.
    """
    links = HostLinks(nic_bytes_per_s=bytes_per_s, link_bytes_per_s=_INSIDE * bytes_per_s)
    by_name = {(each.case, each.way): each for each in found}
    rows: list[Compared] = []
    for transfer in transfers:
        measured = by_name.get((transfer.case.name, transfer.way))
        if measured is None:
            continue
        plan = transfer.plan(bytes_per_s)
        hosts = [links] * len(measured.received_bytes)
        times = len(measured.seconds)
        expected = transfer.received_bytes()
        rows.append(
            Compared(
                transfer=transfer,
                measured=measured,
                planned_s=plan.makespan_s,
                simulated_s=simulated(transfer.case, plan, hosts).makespan_s,
                bound_s=plan.bound_s,
                is_payload_planned=all(
                    count == times * expected.get(host, 0)
                    for host, count in enumerate(measured.received_bytes)
                ),
            )
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Ways of one case that simulation tells apart.

    Attributes:
        num_pairs: Pairs of ways of which one is simulated to take 1.1 times as long, or more.
        wrong: Pairs that were measured in the other order, the one that is simulated faster first.
    """

    num_pairs: int
    wrong: tuple[tuple[Compared, Compared], ...]


def order(rows: Sequence[Compared]) -> Order:
    """Compare all pairs of ways of the same case.

    Args:
        rows: Compared transfers.
    """
    count = 0
    wrong: list[tuple[Compared, Compared]] = []
    for pair in itertools.combinations(rows, 2):
        fast, slow = sorted(pair, key=lambda row: row.simulated_s)
        if fast.transfer.case.name != slow.transfer.case.name:
            continue
        if slow.simulated_s > DIFFERENCE * fast.simulated_s:
            count += 1
            if fast.measured.least_s >= slow.measured.least_s:
                wrong.append((fast, slow))
    return Order(num_pairs=count, wrong=tuple(wrong))
