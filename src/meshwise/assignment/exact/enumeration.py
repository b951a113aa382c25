"""Small networks by depth-first search: exact to the byte, where integer programs have tolerances.

Nodes are chosen in order, the choices of each from cheap to dear.  What the messages prove about
the later nodes, whatever the earlier ones are, cuts off what cannot be better; rows are kept in
integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.bounds.messages import Messages, cost_of, least_after, value_after
from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import INF
from meshwise.assignment.search.room import is_allowed, room_of, take
from meshwise.kernels.arrays import Floats, Ints
from meshwise.kernels.compiler import NONE, ONE, kernel, part

# A number of steps that is never reached.
UNCOUNTED = 2**62
_LARGEST = float(np.finfo(np.float64).max)


@part
def _next(i: int, net: Network, values: Floats, most: float) -> int:
    """Return the cheapest choice of a node that is left, no dearer than `most`; it is taken out."""
    best = NONE
    for s in range(net.size[i]):
        if values[net.first_choice[i] + s] <= most:
            most, best = float(values[net.first_choice[i] + s]), s
    if best >= 0:
        values[net.first_choice[i] + best] = INF
    return best


class Threshold(NamedTuple):
    """What a choice has to be below, and how long one is looked for.

    Attributes:
        base: Cost besides that of nodes and edges.
        known: Cost of the best choice known.
        slack: What rounding adds up to at most.
        steps: Choices of single nodes that may be looked at.
    """

    base: float
    known: float
    slack: float
    steps: int


@kernel
def _search(net: Network, held: Messages, threshold: Threshold, best: Ints) -> tuple[float, bool]:
    """Write the best choice to `best` if it is a new one; return its cost, and if it is proved."""
    known, slack, steps = threshold.known, threshold.slack, threshold.steps
    least = least_after(net, held.node, held.at_u, held.at_v)
    room = room_of(net.capacity)
    values = np.full(net.cost.size, INF)
    choice = np.full(net.size.size, NONE)
    spent = np.zeros(net.size.size + 1)
    spent[0] = threshold.base
    i, count = 0 * ONE, net.size.size
    for s in range(net.size[0]):
        values[s] = value_after(i, s, net, held, choice)
    while i >= 0:
        if held.stop[0] or steps <= 0:
            return known, False
        steps -= 1
        if choice[i] >= 0:
            last: int = choice[i]
            take(i, last, NONE, net, room)
        most: float = known - 1 + slack - least[i + 1] - spent[i]
        most = most if most < _LARGEST else _LARGEST
        s = _next(i, net, values, most)
        while s >= 0 and not is_allowed(i, s, net, room):
            s = _next(i, net, values, most)
        choice[i] = s
        if s < 0:
            i -= 1
            continue
        take(i, s, ONE, net, room)
        spent[i + 1] = spent[i] + value_after(i, s, net, held, choice)
        if i + 1 < count:
            i += 1
            for t in range(net.size[i]):
                values[net.first_choice[i] + t] = value_after(i, t, net, held, choice)
            choice[i] = -1
            continue
        cost = cost_of(net, choice)
        if cost < known:
            known = cost
            best[:] = choice
    return known, True


def enumerate_choices(
    network: Network,
    held: Messages,
    prices: Floats,
    cost: float,
    *,
    steps: int = UNCOUNTED,
) -> tuple[Ints | None, bool]:
    """Search through all choices until the flag of the messages is set.

    Args:
        network: A small network, with whole costs whose sums are exact in floating point.
        held: Messages at these prices.
        prices: Price of a byte in each row.
        cost: Cost of the best choice known; infinite if there is none.
        steps: Choices of single nodes that may be looked at, in a run that is to repeat itself.

    Returns:
        A cheaper choice if one was found, and whether nothing is cheaper than what is known then.
    """
    worth = float(prices @ network.capacity)
    best = np.zeros(len(network.size), np.int64)
    # As for choices that are taken out: sums of this size were rounded.
    slack = 1e-9 * (abs(cost if np.isfinite(cost) else 0.0) + abs(network.constant) + worth)
    threshold = Threshold(float(network.constant) - worth, float(cost), slack, steps)
    known, is_proved = _search(network, held, threshold, best)
    return (best if known < cost else None), is_proved
