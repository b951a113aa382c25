"""Large-neighbourhood search: better choices for some nodes while all others stay.

A neighbourhood is a connected part of the network.  Its nodes are freed and chosen anew by messages
within the part, at prices of memory that vary from try to try, without exceeding any row; what is
not dearer is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import INF
from meshwise.assignment.search.component import (
    ComponentScratch,
    below,
    cost_of_part,
    pick_part,
    prepare,
    rival,
    sweep_part,
    value_within,
)
from meshwise.assignment.search.room import Placed, Room, is_allowed, take
from meshwise.kernels.arrays import Ints
from meshwise.kernels.compiler import BACKWARD, FORWARD, NONE, ONE, kernel, part

_SWEEPS = 3
# Without rows what the messages suggest is nearly the best: as many as one in so many nodes.
_NODES_A_TRY = 3
_LEAST_TRIES = 20


def tries_for(network: Network, most: int) -> int:
    """Return how many tries a search around a choice has."""
    if len(network.capacity):
        return most
    return min(most, max(_LEAST_TRIES, len(network.size) // _NODES_A_TRY))


@part
def _choose_part(part: Ints, net: Network, choice: Ints, room: Room, work: ComponentScratch) -> int:
    """Choose the part's nodes in order within the room; returns how many found a choice."""
    for position in range(part.size):
        i = part[position]
        least, best = INF, NONE
        for s in range(net.size[i]):
            value = value_within(i, s, net, choice, work)
            if value < least and is_allowed(i, s, net, room):
                least, best = value, s
        if best < 0:
            return position
        choice[i] = best
        take(i, best, ONE, net, room)
    return part.size


class Tries(NamedTuple):
    """What is tried.

    Attributes:
        num_parts: Number of parts.
        largest: Most nodes of a part.
        heat: A part that is dearer by this is kept with probability 1/e; 0 keeps none.
        rivals: Share of the tries that free two parts which compete for memory.
    """

    num_parts: int
    largest: int = 200
    heat: float = 0.0
    rivals: float = 0.5


@kernel
def improve(
    tries: Tries, net: Network, placed: Placed, work: ComponentScratch, rng: np.random.Generator
) -> float:
    """Try new choices for parts of the network.

    Args:
        tries: What is tried.
        net: The network.
        placed: A choice within all rows, made better in place.
        work: Scratch with the prices of the rows.
        rng: Random numbers.

    Returns:
        By how much the cost fell.
    """
    choice, room = placed.choice, placed.room
    gain = 0.0
    before = np.empty(net.size.size, np.int64)
    for _ in range(tries.num_parts):
        if work.held.stop[0]:
            break
        count = int(np.exp(rng.random() * np.log(tries.largest))) + 1
        size = 0 * ONE
        start = below(net.size.size, rng)
        if rng.random() < tries.rivals:
            size = pick_part(start, size, (count + 1) // 2, net, work, rng)
            start = rival(size, net, work, room.row, rng)
        if start >= 0:
            size = pick_part(start, size, count, net, work, rng)
        part = work.part[:size]
        now = prepare(part, 1.5 * rng.random(), net, choice, work)
        for _ in range(_SWEEPS):
            sweep_part(FORWARD, part, net, work)
            sweep_part(BACKWARD, part, net, work)
        for i in part:
            before[i] = choice[i]
            take(i, int(choice[i]), NONE, net, room)
        done = _choose_part(part, net, choice, room, work)
        new = cost_of_part(part, net, choice, work) if done == size else INF
        # Kept by Metropolis' rule.
        if new <= now or (tries.heat > 0 and rng.random() < np.exp((now - new) / tries.heat)):
            gain += now - new
        else:
            for k in range(size):
                if k < done:
                    take(part[k], int(choice[part[k]]), NONE, net, room)
                choice[part[k]] = before[part[k]]
            for i in part:
                take(i, int(choice[i]), ONE, net, room)
        for i in part:
            work.inside[i] = False
    return gain
