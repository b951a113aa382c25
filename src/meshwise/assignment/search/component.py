"""Connected parts of a network: picked, freed, and valued by messages among their own nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.bounds.messages import (
    Messages,
    collect_from_earlier,
    collect_from_later,
    no_messages,
    value_beside,
)
from meshwise.assignment.network import Network
from meshwise.kernels.arrays import Bools, Flag, Floats, Ints
from meshwise.kernels.compiler import NONE, ONE, part

# A part has at most so many entries of matrices between its nodes, or one edge.
_MOST_ENTRIES = 1 << 19
# Usage items that are looked at to find one in a certain row.
_SAMPLES = 50


class ComponentScratch(NamedTuple):
    """Arrays of a search that no try needs to make anew.

    Attributes:
        inside: Whether a node is free.
        part: The free nodes.
        held: Messages between free nodes.
        price: Sum of the prices of all rows before each one.
        owner: Node of each usage item.
    """

    inside: Bools
    part: Ints
    held: Messages
    price: Floats
    owner: Ints


def scratch_for(network: Network, stop: Flag | None = None) -> ComponentScratch:
    """Return fresh scratch, all prices zero; kernels heed the flag between parts."""
    return ComponentScratch(
        inside=np.zeros(len(network.size), np.bool_),
        part=np.zeros(len(network.size), np.int64),
        held=no_messages(network, stop),
        price=np.zeros(len(network.capacity) + 1),
        owner=np.repeat(np.arange(len(network.size)), np.diff(network.first_item)),
    )


@part
def below(count: int, rng: np.random.Generator) -> int:
    """Return a random number from 0 to `count - 1`."""
    return int(rng.random() * count)


@part
def _sort(values: Ints, count: int) -> None:
    """Sort the first values by Shell's method: some hundreds at most."""
    step = 1
    while 3 * step < count:
        step = 3 * step + 1
    while step > 0:
        for k in range(step, count):
            value, at = values[k], k
            while at >= step and values[at - step] > value:
                values[at] = values[at - step]
                at -= step
            values[at] = value
        step //= 3


@part
def _entries_inside(i: int, net: Network, work: ComponentScratch) -> int:
    """Return entries of the matrices between a node and the part."""
    count = 0
    for k in range(net.first_later[i], net.first_later[i + 1]):
        e: int = net.later[k]
        if work.inside[net.v[e]]:
            count += net.first_entry[e + 1] - net.first_entry[e]
    for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
        e = net.earlier[k]
        if work.inside[net.u[e]]:
            count += net.first_entry[e + 1] - net.first_entry[e]
    return count


@part
def pick_part(
    start: int,
    size: int,
    count: int,
    net: Network,
    work: ComponentScratch,
    rng: np.random.Generator,
) -> int:
    """Mark a connected part around a node, besides `size` nodes that are marked already.

    Returns:
        The number of all nodes, which are ascending.
    """
    head, entries = size, 0 * ONE
    work.part[size] = start
    work.inside[start] = True
    size += 1
    while head < size and size < count and entries < _MOST_ENTRIES:
        # Swap a random waiting node to the front, so that parts differ in shape.
        other = head + below(size - head, rng)
        i = work.part[other]
        work.part[other], work.part[head] = work.part[head], i
        head += 1
        degree = net.first_later[i + 1] - net.first_later[i]
        total = degree + net.first_earlier[i + 1] - net.first_earlier[i]
        begin = below(int(total) if total > 1 else ONE, rng)
        for turn in range(total if total < 16 else 16):
            k = (begin + turn) % total
            if k < degree:
                j = int(net.v[net.later[net.first_later[i] + k]])
            else:
                j = int(net.u[net.earlier[net.first_earlier[i] + k - degree]])
            if not work.inside[j] and size < count and entries < _MOST_ENTRIES:
                entries += _entries_inside(j, net, work)
                work.inside[j] = True
                work.part[size] = j
                size += 1
    _sort(work.part, size)
    return size


@part
def rival(
    size: int, net: Network, work: ComponentScratch, room: Ints, rng: np.random.Generator
) -> int:
    """Return a random node outside that uses the fullest row of some node of the part.

    -1 for none.
    """
    i = work.part[below(size, rng)]
    items = int(net.first_item[i + 1] - net.first_item[i])
    if items == 0:
        return NONE
    k = net.first_item[i] + below(items, rng)
    row = int(net.item_low[k])
    for other in range(net.item_low[k], net.item_high[k]):
        if room[other] < room[row]:
            row = other
    for _ in range(_SAMPLES):
        k = below(work.owner.size, rng)
        j = work.owner[k]
        if net.item_low[k] <= row < net.item_high[k] and not work.inside[j]:
            return j
    return NONE


@part
def prepare(part: Ints, weight: float, net: Network, choice: Ints, work: ComponentScratch) -> float:
    """Write the values of the part's nodes; returns what the part costs now."""
    now = 0.0
    for i in part:
        first = int(net.first_choice[i])
        now += net.cost[first + choice[i]]
        for s in range(net.size[i]):
            work.held.node[first + s] = net.cost[first + s]
        for k in range(net.first_item[i], net.first_item[i + 1]):
            price = weight * (work.price[net.item_high[k]] - work.price[net.item_low[k]])
            if price > 0:
                for s in range(net.size[i]):
                    work.held.node[first + s] += price * net.usage[net.first_usage[k] + s]
        for k in range(net.first_later[i], net.first_later[i + 1]):
            e: int = net.later[k]
            j, width = net.v[e], net.size[net.v[e]]
            at: int = net.first_entry[e]
            now += net.matrices[at + choice[i] * width + choice[j]]
            if work.inside[j]:
                work.held.at_u[net.first_u[e] : net.first_u[e] + net.size[i]] = 0.0
                work.held.at_v[net.first_v[e] : net.first_v[e] + width] = 0.0
            else:
                for s in range(net.size[i]):
                    work.held.node[first + s] += net.matrices[at + s * width + choice[j]]
        for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
            e = net.earlier[k]
            j = net.u[e]
            if not work.inside[j]:
                at = net.first_entry[e] + choice[j] * net.size[i]
                now += net.matrices[at + choice[i]]
                for s in range(net.size[i]):
                    work.held.node[first + s] += net.matrices[at + s]
    return float(now)


@part
def _collect_inside(forward: bool, i: int, net: Network, work: ComponentScratch) -> tuple[int, int]:
    """Bring value to a node from the edges behind it; returns its edges before and behind."""
    num_later = num_earlier = 0
    for k in range(net.first_later[i], net.first_later[i + 1]):
        e: int = net.later[k]
        if work.inside[net.v[e]]:
            num_later += 1
            if not forward:
                collect_from_later(e, net, work.held)
    for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
        e = net.earlier[k]
        if work.inside[net.u[e]]:
            num_earlier += 1
            if forward:
                collect_from_earlier(e, net, work.held)
    return (num_later, num_earlier) if forward else (num_earlier, num_later)


@part
def sweep_part(forward: bool, part: Ints, net: Network, work: ComponentScratch) -> None:
    """Do the same as `messages.sweep` along the edges inside a part."""
    held = work.held
    for position in range(part.size):
        i = part[position] if forward else part[part.size - 1 - position]
        first, size = net.first_choice[i], net.size[i]
        onward, behind = _collect_inside(forward, i, net, work)
        if onward == 0:
            continue
        largest = onward if onward > behind else behind
        if forward:
            for k in range(net.first_later[i], net.first_later[i + 1]):
                e: int = net.later[k]
                if work.inside[net.v[e]]:
                    for s in range(size):
                        held.at_u[net.first_u[e] + s] += held.node[first + s] / largest
        else:
            for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
                e = net.earlier[k]
                if work.inside[net.u[e]]:
                    for s in range(size):
                        held.at_v[net.first_v[e] + s] += held.node[first + s] / largest
        rest = 0.0 if onward == largest else 1.0 - onward / largest
        for s in range(size):
            held.node[first + s] *= rest


@part
def value_within(i: int, s: int, net: Network, choice: Ints, work: ComponentScratch) -> float:
    """Return value of choice `s` of a node given the choices of the earlier ones of its part."""
    value = work.held.node[net.first_choice[i] + s]
    for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
        e: int = net.earlier[k]
        if work.inside[net.u[e]]:
            value += value_beside(e, int(choice[net.u[e]]), s, net, work.held)
    return float(value)


@part
def cost_of_part(part: Ints, net: Network, choice: Ints, work: ComponentScratch) -> float:
    """Return cost of the part's choices and of all its edges."""
    total = 0.0
    for i in part:
        total += net.cost[net.first_choice[i] + choice[i]]
        for k in range(net.first_later[i], net.first_later[i + 1]):
            e: int = net.later[k]
            at: int = net.first_entry[e] + choice[i] * net.size[net.v[e]]
            total += net.matrices[at + choice[net.v[e]]]
        for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
            e = net.earlier[k]
            if not work.inside[net.u[e]]:
                at = net.first_entry[e] + choice[net.u[e]] * net.size[i]
                total += net.matrices[at + choice[i]]
    return float(total)
