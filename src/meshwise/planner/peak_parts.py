"""The parts of a peak, for readers: arguments by their parts, values by their source lines."""

from __future__ import annotations

from meshwise.memory.peak import Buffer, Peak
from meshwise.plan.peak_part import PeakPart

# Parts that are named; of a path of an argument its number and first key, as `0/params`.
_MOST_PARTS = 8
_KEYS = 2


def peak_parts(peak: Peak) -> tuple[PeakPart, ...]:
    """Return the largest parts of a peak, largest first, and the rest.

    Args:
        peak: Where memory is highest, with what is live then.
    """
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for buffer in peak.buffers:
        key = (buffer.role, _where(buffer))
        count, num_bytes = sums.get(key, (0, 0))
        sums[key] = count + 1, num_bytes + buffer.num_bytes
    parts = [
        PeakPart(role=role, where=where, count=count, num_bytes=num_bytes)
        for (role, where), (count, num_bytes) in sums.items()
    ]
    parts.sort(key=lambda part: (-part.num_bytes, part.role, part.where))
    named = parts[:_MOST_PARTS]
    rest = peak.num_bytes - sum(part.num_bytes for part in named)
    if rest > 0:
        named.append(PeakPart(role="rest", where="", count=0, num_bytes=rest))
    return tuple(named)


def _where(buffer: Buffer) -> str:
    if buffer.role != "input":
        return buffer.where
    return "/".join(buffer.where.split("/")[:_KEYS])
