"""The strategies between devices: which piece of a part of a box goes from where to where.

A part is sent by one device.  The devices that need it are in groups, one for each host that gets
it.  Legs have *slots*: those of one slot go at the same time, and pass on what came in
slots before.  `strategies` has the seconds of all that.

Source: AlpaComm section 3.1 (docs/facts.md section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from meshwise.resharding.cross_mesh.strategies import (
    BROADCAST,
    GATHERED,
    GLOBAL_GATHERED,
    SEND_RECV,
    STRATEGIES,
)
from meshwise.resharding.tiles import Box, cut_box, num_elements

Groups: TypeAlias = Sequence[Sequence[int]]


class Leg(NamedTuple):
    """A piece that goes from device to device.

    Attributes:
        box: The elements.
        source: The device that has it, by then.
        destination: The device that gets it.
        slot: When it goes.
    """

    box: Box
    source: int
    destination: int
    slot: int


def legs(strategy: str, part: Box, groups: Groups, sender: int, num_chunks: int) -> tuple[Leg, ...]:
    """Return how a part of a box gets to the devices that need it.

    Under a broadcast the first device of each group gets it, and sends it on.

    Args:
        strategy: One of `strategies.STRATEGIES`.
        part: The part of the box.
        groups: For each host that gets it, in order, the devices that need it.
        sender: The device that sends it.
        num_chunks: Chunks of a broadcast.

    Raises:
        ValueError: there is no such strategy.
    """
    if strategy == SEND_RECV:
        devices = [device for group in groups for device in group]
        return tuple(Leg(part, sender, device, n) for n, device in enumerate(devices))
    if strategy == GATHERED:
        return _gathered_locally(part, groups, sender)
    if strategy == GLOBAL_GATHERED:
        return _gathered_globally(part, groups, sender)
    if strategy == BROADCAST:
        return _broadcast(part, groups, sender, num_chunks)
    raise ValueError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


def equal_parts(box: Box, count: int) -> tuple[Box, ...]:
    """Return a box in equal parts along its longest dim; what has no elements is left out.

    Args:
        box: The box.
        count: How many parts at most.
    """
    parts = cut_box(box, [n / count for n in range(1, count)])
    return tuple(part for part in parts if num_elements(part))


def _gathered_locally(part: Box, groups: Groups, sender: int) -> tuple[Leg, ...]:
    """Return the legs where devices of a host are sent a piece each, and gather them there."""
    found: list[Leg] = []
    for slot, group in enumerate(groups):
        pieces = equal_parts(part, len(group))
        found += [Leg(p, sender, d, slot) for p, d in zip(pieces, group, strict=False)]
        found += _gathered_inside(group, {n: [p] for n, p in enumerate(pieces)}, slot + 1)
    return tuple(found)


def _gathered_globally(part: Box, groups: Groups, sender: int) -> tuple[Leg, ...]:
    """Return the legs where all devices are sent a piece each, and hosts pass them on in a ring."""
    count = len(groups)
    # What is short has no share for some hosts.
    ordered = (*equal_parts(part, count), *[None] * count)[:count]
    shares = [
        () if share is None else equal_parts(share, len(group))
        for share, group in zip(ordered, groups, strict=True)
    ]
    found: list[Leg] = []
    for group, pieces in zip(groups, shares, strict=True):
        found += [Leg(p, sender, d, 0) for p, d in zip(pieces, group, strict=False)]
    # For each host the pieces that its devices have, by the place of the device in the group.
    at = [{n: [p] for n, p in enumerate(pieces)} for pieces in shares]
    for step in range(1, count):
        for n, group in enumerate(groups):
            right = (n + 1) % count
            # What came last: the share of the host that is so many places behind.
            for place, piece in enumerate(shares[(n - step + 1) % count]):
                there = place % len(groups[right])
                source, destination = group[place % len(group)], groups[right][there]
                found.append(Leg(piece, source, destination, step))
                at[right].setdefault(there, []).append(piece)
    for group, pieces in zip(groups, at, strict=True):
        found += _gathered_inside(group, pieces, count)
    return tuple(found)


def _gathered_inside(group: Sequence[int], pieces: dict[int, list[Box]], slot: int) -> list[Leg]:
    """Return the legs on which devices of a host give each other what they have."""
    return [
        Leg(piece, group[place], device, slot)
        for place, boxes in pieces.items()
        for device in group
        if device != group[place]
        for piece in boxes
    ]


def _broadcast(part: Box, groups: Groups, sender: int, num_chunks: int) -> tuple[Leg, ...]:
    """Return the legs of chunks that go from host to host, and to all devices there."""
    found: list[Leg] = []
    for n, chunk in enumerate(equal_parts(part, num_chunks)):
        source = sender
        for hop, group in enumerate(groups):
            found.append(Leg(chunk, source, group[0], n + hop))
            source = group[0]
            found += [Leg(chunk, source, device, n + hop + 1) for device in group[1:]]
    return tuple(found)
