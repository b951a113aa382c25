"""Large-neighbourhood search: better choices for some nodes while all others stay.

A neighbourhood is a connected part of the network.  Its nodes are freed and chosen anew by messages
within the part, at prices of memory that vary from try to try, without exceeding any row; what is
not dearer is kept.
"""

# pyright: basic
# Kernels: Numba checks their types when it compiles them.
from __future__ import annotations

from typing import Any

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
from meshwise.assignment.search.room import Room, is_allowed, take
from meshwise.kernels.compiler import BACKWARD, FORWARD, NONE, ONE, kernel, part

Array = Any

_SWEEPS = 3
# Without rows what the messages suggest is nearly the best: as many as one in so many nodes.
_NODES_A_TRY = 3
_LEAST_TRIES = 20


def tries_for(network: Network, most: int) -> int:
    """How many tries a search around a choice has."""
    if len(network.capacity):
        return most
    return min(most, max(_LEAST_TRIES, len(network.size) // _NODES_A_TRY))


@part
def _choose_part(
    part: Array, net: Network, choice: Array, room: Room, work: ComponentScratch
) -> int:
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


@kernel
def improve(
    tries: int, largest: int, heat: float, rivals: float, net: Network, choice: Array, room: Room,
    work: ComponentScratch, rng: np.random.Generator,
) -> float:  # fmt: skip
    """Try new choices for parts of the network; returns by how much the cost fell.

    Args:
        tries: Number of parts.
        largest: Most nodes of a part.
        heat: A part that is dearer by this is kept with probability 1/e; 0 keeps none.
        rivals: Share of the tries that free two parts which compete for memory.
        net: The network.
        choice: Within all rows; made better in place.
        room: What it leaves; kept up to date.
        work: Scratch with the prices of the rows.
        rng: Random numbers.
    """
    gain = 0.0
    before: Array = np.empty(net.size.size, np.int64)
    for _ in range(tries):
        if work.held.stop[0]:
            break
        count = int(np.exp(rng.random() * np.log(largest))) + 1
        size = 0 * ONE
        start = below(net.size.size, rng)
        if rng.random() < rivals:
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
            take(i, choice[i], NONE, net, room)
        done = _choose_part(part, net, choice, room, work)
        new = cost_of_part(part, net, choice, work) if done == size else INF
        # Kept by Metropolis' rule.
        if new <= now or (heat > 0 and rng.random() < np.exp((now - new) / heat)):
            gain += now - new
        else:
            for k in range(size):
                if k < done:
                    take(part[k], choice[part[k]], NONE, net, room)
                choice[part[k]] = before[part[k]]
            for i in part:
                take(i, choice[i], ONE, net, room)
        for i in part:
            work.inside[i] = False
    return gain
