"""What a search in the order of the nodes knows of those to come: bounds, and who is still needed.

The frontier are the nodes chosen that have a later neighbour.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.bounds.messages import least_after
from meshwise.assignment.network import Network
from meshwise.kernels.arrays import Flag, Floats, Ints
from meshwise.kernels.compiler import ONE, part


class Bounds(NamedTuple):
    """What is proved of each choice at several prices of memory, one line each.

    Attributes:
        node: Value of each choice that lies at its node.
        at_u: Value that each edge holds for the choices of its earlier node.
        at_v: The same for its later node.
        base: Value besides.
        most: No better choice is worth more.
        stop: Flag of one number; ends the search when another thread sets it.
    """

    node: Floats
    at_u: Floats
    at_v: Floats
    base: Floats
    most: Floats
    stop: Flag


@part
def least_with(net: Network, bounds: Bounds) -> Floats:
    """Return the least worth of all nodes from each one on, with each line of the bounds."""
    lines = bounds.base.size
    least = np.zeros((lines, net.size.size + 1))
    for k in range(lines):
        least[k] = least_after(net, bounds.node[k], bounds.at_u[k], bounds.at_v[k])
    return least


@part
def frontiers(net: Network) -> tuple[Ints, Ints, int]:
    """Return each node's place in the frontier, the last one that needs it, and the most places."""
    count = net.size.size
    last = np.zeros(count, np.int64)
    for i in range(count):
        last[i] = i
    for e in range(net.u.size):
        last[net.u[e]] = net.v[e] if net.v[e] > last[net.u[e]] else last[net.u[e]]
    place = np.full(count, -1)
    owner = np.full(count + 1, -1)
    width = 0 * ONE
    for i in range(count):
        for k in range(width):
            if owner[k] >= 0 and last[owner[k]] < i:
                owner[k] = -1
        if last[i] > i:
            k = 0 * ONE
            while owner[k] >= 0:
                k += 1
            owner[k] = i
            place[i] = k
            width = k + 1 if k + 1 > width else width
    return place, last, width
