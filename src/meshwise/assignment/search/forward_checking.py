"""Depth-first search for choices that no edge forbids, whatever they cost and use.

Where every pair of nodes forbids much, a few nodes cannot be chosen together, which neither
bounds nor local search notice.  The node with the fewest choices left comes next; each choice
takes out what it forbids at its neighbours.

Source: forward checking, smallest domain first (R. Haralick, G. Elliott, Artif. Intell. 1980).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from meshwise.assignment.network import Network
from meshwise.kernels.arrays import Bools, Flag, Ints
from meshwise.kernels.compiler import NONE, kernel, part

# Entries looked at, less than a second's worth.
_BUDGET = 300_000_000
_UNDECIDED, _IMPOSSIBLE, _FOUND = range(3)


@part
def _narrowest(count: Ints, is_chosen: Bools) -> int:
    """Return the node that has the fewest choices left."""
    best = NONE
    for i in range(count.size):
        if not is_chosen[i] and (best < 0 or count[i] < count[best]):
            best = i
    return best


class Domains(NamedTuple):
    """What is left to choose from.

    Attributes:
        num_left: Choices left of each node.
        is_out: Whether each choice is taken out.
        is_chosen: Whether each node is chosen.
        trail: Choices that were taken out, in order, each with its node.
    """

    num_left: Ints
    is_out: Bools
    is_chosen: Bools
    trail: Ints


@part
def _take_out(i: int, s: int, net: Network, domains: Domains, top: int) -> tuple[bool, int, int]:
    """Take out what a choice forbids; whether each neighbour has one left, the trail, the work."""
    count, is_out = domains.num_left, domains.is_out
    is_chosen, trail = domains.is_chosen, domains.trail
    done = 0
    for side in range(2):
        first = net.first_later if side == 0 else net.first_earlier
        edges = net.later if side == 0 else net.earlier
        for k in range(first[i], first[i + 1]):
            e = edges[k]
            other = net.v[e] if side == 0 else net.u[e]
            if is_chosen[other]:
                continue
            base = int(net.first_choice[other])
            done += int(net.size[other])
            for t in range(net.size[other]):
                at = int(net.first_entry[e])
                at += int(s * net.size[other] + t if side == 0 else t * net.size[i] + s)
                if not is_out[base + t] and np.isinf(net.matrices[at]):
                    is_out[base + t] = True
                    trail[top, 0], trail[top, 1] = base + t, other
                    top += 1
                    count[other] -= 1
            if count[other] == 0:
                return False, top, done
    return True, top, done


@kernel
def _search(budget: int, net: Network, choice: Ints, stop: Flag) -> int:
    num_nodes = net.size.size
    is_out = np.isinf(net.cost)
    count = np.zeros(num_nodes, np.int64)
    for i in range(num_nodes):
        for k in range(net.first_choice[i], net.first_choice[i + 1]):
            count[i] += not is_out[k]
    is_chosen = np.zeros(num_nodes, np.bool_)
    node, mark = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    trail = np.zeros((net.cost.size, 2), np.int64)
    domains = Domains(count, is_out, is_chosen, trail)
    depth = top = done = 0
    goes_on = True
    while done <= budget and not stop[0]:
        if goes_on:
            if depth == num_nodes:
                return _FOUND
            node[depth] = i = _narrowest(count, is_chosen)
            done += num_nodes
            is_chosen[i] = True
            choice[i] = NONE
        i = node[depth]
        s = int(choice[i] + 1)
        while s < net.size[i] and is_out[net.first_choice[i] + s]:
            s += 1
        if s < net.size[i]:
            choice[i], mark[depth] = s, top
            goes_on, top, more = _take_out(i, s, net, domains, top)
            done += more
            if goes_on:
                depth += 1
                continue
        else:
            is_chosen[i] = False
            goes_on = False
            if depth == 0:
                return _IMPOSSIBLE
            depth -= 1
        while top > mark[depth]:
            top -= 1
            is_out[trail[top, 0]] = False
            count[trail[top, 1]] += 1
    return _UNDECIDED


def find_consistent(network: Network, stop: Flag) -> tuple[Ints | None, bool]:
    """Return choices that no edge forbids, or None; and whether it is proved that there are none.

    Args:
        network: What is left of a problem.
        stop: Ends the search when another thread sets it to 1.
    """
    count = len(network.size)
    if not count or count**2 > _BUDGET or not np.isinf(network.matrices).any():
        return None, False
    choice = np.zeros(count, np.int64)
    found = _search(cast("int", np.int64(_BUDGET)), network, choice, stop)
    return (choice if found == _FOUND else None), found == _IMPOSSIBLE
