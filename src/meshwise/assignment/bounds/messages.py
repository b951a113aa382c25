"""Message passing on a reduced network: bounds without memory rows, and choices that follow them.

The cost of a network is written anew, without changing any sum, as values at nodes and matrices at
edges plus values at the edges' ends.  A sweep moves value along the node order so that the sum of
all minima, a lower bound, grows.

Source: sequential reweighted message passing (V. Kolmogorov, PAMI 2015), which on pairwise costs is
TRW-S (PAMI 2006).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import INF, least_in
from meshwise.assignment.search.room import is_allowed, room_of, take
from meshwise.kernels.arrays import Flag, Floats, Ints
from meshwise.kernels.compiler import NONE, ONE, light_kernel, part


class Messages(NamedTuple):
    """Where the cost lies.

    Attributes:
        node: Value of each choice that lies at its node.
        at_u: Value that each edge holds for the choices of its earlier node.
        at_v: The same for its later node.
        stop: Flag of one number; once another thread sets it kernels return early, without a
            result.
    """

    node: Floats
    at_u: Floats
    at_v: Floats
    stop: Flag


def no_messages(network: Network, stop: Flag | None = None) -> Messages:
    """Return messages with all cost at the nodes; kernels that work on them heed the flag."""
    return Messages(
        node=network.cost.copy(),
        at_u=np.zeros(int(network.size[network.u].sum())),
        at_v=np.zeros(int(network.size[network.v].sum())),
        stop=np.zeros(1, np.int8) if stop is None else stop,
    )


def copied(held: Messages) -> Messages:
    """Return the same messages, to be changed; the flag is shared."""
    return Messages(held.node.copy(), held.at_u.copy(), held.at_v.copy(), held.stop)


@part
def collect_from_earlier(e: int, net: Network, held: Messages) -> None:
    """Move what an edge guarantees for each choice of its later node to that node."""
    u, v = net.u[e], net.v[e]
    size, width = int(net.size[u]), int(net.size[v])
    at_u = held.at_u[net.first_u[e] : net.first_u[e] + size]
    at_v = held.at_v[net.first_v[e] : net.first_v[e] + width]
    node = held.node[net.first_choice[v] : net.first_choice[v] + width]
    matrix = net.matrices[net.first_entry[e] : net.first_entry[e] + size * width]
    # Four minima at once: one would wait for the last one.
    for t in range(0, width - 3, 4):
        a, b, c, d = INF, INF, INF, INF
        columns = matrix[t:]
        k = 0
        for s in range(size):
            value = float(at_u[s])
            of_a, of_b = columns[k] + value, columns[k + 1] + value
            of_c, of_d = columns[k + 2] + value, columns[k + 3] + value
            a = of_a if of_a < a else a
            b = of_b if of_b < b else b
            c = of_c if of_c < c else c
            d = of_d if of_d < d else d
            k += width
        node[t] += a + at_v[t]
        node[t + 1] += b + at_v[t + 1]
        node[t + 2] += c + at_v[t + 2]
        node[t + 3] += d + at_v[t + 3]
        at_v[t], at_v[t + 1], at_v[t + 2], at_v[t + 3] = -a, -b, -c, -d
    for t in range(width - width % 4, width):
        least = INF
        for s in range(size):
            value = float(matrix[s * width + t] + at_u[s])
            least = value if value < least else least
        node[t] += least + at_v[t]
        at_v[t] = -least


@part
def collect_from_later(e: int, net: Network, held: Messages) -> None:
    """Move what an edge guarantees for each choice of its earlier node to that node."""
    u, v = net.u[e], net.v[e]
    size, width = int(net.size[u]), int(net.size[v])
    at_u = held.at_u[net.first_u[e] : net.first_u[e] + size]
    at_v = held.at_v[net.first_v[e] : net.first_v[e] + width]
    node = held.node[net.first_choice[u] : net.first_choice[u] + size]
    for s in range(size):
        row = net.matrices[net.first_entry[e] + s * width : net.first_entry[e] + (s + 1) * width]
        # Four minima at once: one would wait for the last one.
        a, b, c, d = INF, INF, INF, INF
        for t in range(0, width - 3, 4):
            of_a, of_b = row[t] + at_v[t], row[t + 1] + at_v[t + 1]
            of_c, of_d = row[t + 2] + at_v[t + 2], row[t + 3] + at_v[t + 3]
            a = of_a if of_a < a else a
            b = of_b if of_b < b else b
            c = of_c if of_c < c else c
            d = of_d if of_d < d else d
        for t in range(width - width % 4, width):
            value = float(row[t] + at_v[t])
            a = value if value < a else a
        a, c = b if b < a else a, d if d < c else c
        least = c if c < a else a
        node[s] += least + at_u[s]
        at_u[s] = -least


@part
def _rest(forward: bool, i: int, net: Network) -> float:
    """Share of a node's value that stays when the others are passed on."""
    num_later = net.first_later[i + 1] - net.first_later[i]
    num_earlier = net.first_earlier[i + 1] - net.first_earlier[i]
    onward = num_later if forward else num_earlier
    largest = num_later if num_later > num_earlier else num_earlier
    if largest == 0:
        return 1.0
    return 0.0 if onward == largest else 1.0 - onward / largest


@part
def collect(forward: bool, i: int, net: Network, held: Messages) -> float:
    """Bring value to a node from the edges behind it; returns what it adds to the bound."""
    if forward:
        for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
            collect_from_earlier(net.earlier[k], net, held)
    else:
        for k in range(net.first_later[i], net.first_later[i + 1]):
            collect_from_later(net.later[k], net, held)
    least = least_in(held.node, net.first_choice[i], net.first_choice[i + 1])
    return least * _rest(forward, i, net)


@part
def pass_on(forward: bool, i: int, net: Network, held: Messages) -> None:
    """Share the value of a node among the edges before it."""
    num_later = net.first_later[i + 1] - net.first_later[i]
    num_earlier = net.first_earlier[i + 1] - net.first_earlier[i]
    if (num_later if forward else num_earlier) == 0:
        return
    low, high = net.first_choice[i], net.first_choice[i + 1]
    share = 1.0 / (num_later if num_later > num_earlier else num_earlier)
    if forward:
        for k in range(net.first_later[i], net.first_later[i + 1]):
            place = int(net.first_u[net.later[k]])
            for s in range(high - low):
                held.at_u[place + s] += share * held.node[low + s]
    else:
        for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
            place = int(net.first_v[net.earlier[k]])
            for s in range(high - low):
                held.at_v[place + s] += share * held.node[low + s]
    rest = _rest(forward, i, net)
    for s in range(low, high):
        held.node[s] *= rest


@light_kernel
def sweep(forward: bool, net: Network, held: Messages) -> float:
    """Pass value along the nodes once; returns the bound that results, without the constant."""
    bound = 0.0
    count = net.size.size
    for position in range(count):
        if held.stop[0]:
            return -INF
        i = position if forward else count - 1 - position
        bound += collect(forward, i, net, held)
        pass_on(forward, i, net, held)
    return bound


@light_kernel
def add_prices(change: Floats, net: Network, held: Messages) -> None:
    """Raise the price of a byte in each row by `change`."""
    until = np.zeros(change.size + 1)
    for row in range(change.size):
        until[row + 1] = until[row] + change[row]
    for i in range(net.size.size):
        for k in range(net.first_item[i], net.first_item[i + 1]):
            price = until[net.item_high[k]] - until[net.item_low[k]]
            if price != 0.0:
                for s in range(net.size[i]):
                    held.node[net.first_choice[i] + s] += price * net.usage[net.first_usage[k] + s]


@part
def value_beside(e: int, before: int, s: int, net: Network, held: Messages) -> float:
    """Return the value of choice `s` of an edge's later node if the earlier one takes `before`."""
    at = net.first_entry[e] + before * net.size[net.v[e]] + s
    return float(
        net.matrices[at] + held.at_u[net.first_u[e] + before] + held.at_v[net.first_v[e] + s]
    )


@part
def value_after(i: int, s: int, net: Network, held: Messages, choice: Ints) -> float:
    """Return value of choice `s` of a node given the choices of the earlier ones."""
    value = float(held.node[net.first_choice[i] + s])
    for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
        e: int = net.earlier[k]
        value += value_beside(e, int(choice[net.u[e]]), s, net, held)
    return value


@part
def least_after(net: Network, node: Floats, at_u: Floats, at_v: Floats) -> Floats:
    """Return the least worth of all nodes from each one on, with edges to earlier nodes."""
    least = np.zeros(net.size.size + 1)
    for i in range(net.size.size - 1, -1, -1):
        total = least[i + 1] + least_in(node, net.first_choice[i], net.first_choice[i + 1])
        for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
            e: int = net.earlier[k]
            found = INF
            for s in range(net.size[net.u[e]]):
                at: int = net.first_entry[e] + s * net.size[i]
                for t in range(net.size[i]):
                    value = float(net.matrices[at + t] + at_v[net.first_v[e] + t])
                    value += float(at_u[net.first_u[e] + s])
                    found = value if value < found else found
            total += found
        least[i] = total
    return least


@light_kernel
def follow(net: Network, held: Messages, choice: Ints) -> None:
    """Choose node by node what is best given the earlier choices; after a backward sweep."""
    for i in range(net.size.size):
        if held.stop[0]:
            choice[i:] = 0
            return
        least, best = INF, 0
        for s in range(net.size[i]):
            value = value_after(i, s, net, held, choice)
            if value < least:
                least, best = value, s
        choice[i] = best


@part
def follow_within(net: Network, held: Messages, choice: Ints) -> bool:
    """Do the same as `follow` within all rows; return whether there was a way."""
    room = room_of(net.capacity)
    for i in range(net.size.size):
        if held.stop[0]:
            return False
        least, best = INF, NONE
        for s in range(net.size[i]):
            value = value_after(i, s, net, held, choice)
            if value < least and is_allowed(i, s, net, room):
                least, best = value, s
        if best < 0:
            return False
        choice[i] = best
        take(i, best, ONE, net, room)
    return True


@light_kernel
def cost_of(net: Network, choice: Ints) -> float:
    """Return cost of a choice of the network, with the constant."""
    total = net.constant
    for i in range(net.size.size):
        total += net.cost[net.first_choice[i] + choice[i]]
    for e in range(net.u.size):
        total += net.matrices[
            net.first_entry[e] + choice[net.u[e]] * net.size[net.v[e]] + choice[net.v[e]]
        ]
    return float(total)


@light_kernel
def room_left(net: Network, choice: Ints) -> Ints:
    """Return bytes that a choice leaves in each row; negative where it does not fit."""
    change = np.zeros(net.capacity.size + 1, np.int64)
    for i in range(net.size.size):
        for k in range(net.first_item[i], net.first_item[i + 1]):
            used = net.usage[net.first_usage[k] + choice[i]]
            change[net.item_low[k]] += used
            change[net.item_high[k]] -= used
    room = net.capacity.copy()
    load = 0
    for row in range(room.size):
        load += change[row]
        room[row] -= load
    return room
