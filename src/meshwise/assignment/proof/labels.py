"""Networks whose nodes can be ordered well: partial choices side by side, without dominated ones.

Nodes are chosen in order.  What later nodes cost depends on the frontier only, the nodes that have
a later neighbour, and on the bytes used: of two labels (partial choices) with the same frontier,
one that costs and uses no less than the other goes.  What the messages prove about the later nodes,
at several prices of memory, takes out what cannot be better than the best choice known.

Source: labels of shortest paths with resources (M. Desrochers, F. Soumis, 1988) along a path
decomposition, with Lagrangian completion bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.network import Network
from meshwise.assignment.proof.frontier import Bounds, frontiers, least_with
from meshwise.assignment.reductions.arrays import INF, grown
from meshwise.kernels.arrays import Floats, Ints, Ints16, Ints32
from meshwise.kernels.compiler import NONE, ONE, kernel, part

# What `find_labels` says.
GAVE_UP, NOTHING, FOUND = 0, 1, 2
# Steps of bounds that labels are told apart by.
_BINS = 1024


class LabelLimits(NamedTuple):
    """What bounds a search with labels.

    Attributes:
        cutoff: Cost of the choice known.
        room: Labels that there may be of one number of nodes.
        beam: Labels of one number of nodes that are gone on with, those with the least bounds; what
            is found is then not the best one.  At least `room` for all.
    """

    cutoff: float
    room: int
    beam: int


class LabelTask(NamedTuple):
    """What a search with labels is about.

    Attributes:
        net: The network, in an order with small frontiers.
        bounds: What is proved.
        limits: What bounds the search.
        place: Place of each node in the frontier, -1 for none.
        last: Last node that needs each node.
        least: What all nodes from each one on are worth at least, with each line of the bounds.
        work: Pairs of a label and a choice that may be looked at; what is left of them.
    """

    net: Network
    bounds: Bounds
    limits: LabelLimits
    place: Ints
    last: Ints
    least: Floats
    work: Ints


class Labels(NamedTuple):
    """Partial choices of the first nodes.

    Attributes:
        front: Choices of the nodes of the frontier.
        used: Bytes in each row.
        value: Value with each line of the bounds.
        cost: True cost; infinite for a label that is left out.
        parent: The label of one node less.
        choice: Choice of the last node.
        following: Next label whose frontier has the same hash.
    """

    front: Ints16
    used: Ints
    value: Floats
    cost: Floats
    parent: Ints32
    choice: Ints16
    following: Ints32


class Generations(NamedTuple):
    """The labels of some number of nodes, and those of one node more.

    Attributes:
        old: Labels that are there.
        new: Labels that are being written.
        heads: First new label of each hash of frontiers, -1 for none.
    """

    old: Labels
    new: Labels
    heads: Ints32


class Draft(NamedTuple):
    """A label before it has a place.

    Attributes:
        front: Choices of the nodes of the frontier.
        value: Value with each line of the bounds.
        used: Bytes in each row.
    """

    front: Ints16
    value: Floats
    used: Ints


@part
def _empty(room: int, width: int, rows: int, lines: int) -> Labels:
    return Labels(
        np.zeros((room, width), np.int16),
        np.zeros((room, rows), np.int64),
        np.zeros((room, lines)),
        np.zeros(room),
        np.zeros(room, np.int32),
        np.zeros(room, np.int16),
        np.zeros(room, np.int32),
    )


@part
def _values(i: int, s: int, parent: int, task: LabelTask, old: Labels, value: Floats) -> bool:
    """Write the values of a label and a choice; False if it cannot be better."""
    net, bounds, place = task.net, task.bounds, task.place
    for k in range(bounds.base.size):
        total = old.value[parent, k] + bounds.node[k, net.first_choice[i] + s]
        for j in range(net.first_earlier[i], net.first_earlier[i + 1]):
            e: int = net.earlier[j]
            before: int = old.front[parent, place[net.u[e]]]
            total += net.matrices[net.first_entry[e] + before * net.size[i] + s]
            total += bounds.at_u[k, net.first_u[e] + before] + bounds.at_v[k, net.first_v[e] + s]
        # An infinite sum is not less either.
        if not total + task.least[k, i + 1] <= bounds.most[k]:
            return False
        value[k] = total
    return True


@part
def _cost(i: int, s: int, parent: int, task: LabelTask, old: Labels) -> float:
    net = task.net
    cost = old.cost[parent] + net.cost[net.first_choice[i] + s]
    for j in range(net.first_earlier[i], net.first_earlier[i + 1]):
        e: int = net.earlier[j]
        before: int = old.front[parent, task.place[net.u[e]]]
        cost += net.matrices[net.first_entry[e] + before * net.size[i] + s]
    return cost


@part
def _used(i: int, s: int, parent: int, net: Network, old: Labels, used: Ints) -> bool:
    """Write the bytes of a label and a choice; False if they do not fit."""
    for row in range(used.size):
        used[row] = old.used[parent, row]
    for k in range(net.first_item[i], net.first_item[i + 1]):
        more = net.usage[net.first_usage[k] + s]
        for row in range(net.item_low[k], net.item_high[k]):
            used[row] += more
    fits = True
    for row in range(used.size):
        fits &= used[row] <= net.capacity[row]
    return fits


@part
def _compared(cost: float, used: Ints, other: int, new: Labels) -> int:
    """Return 1 if the other label is no worse, 2 if it is worse or the same, 0 if neither."""
    no_worse, no_better = new.cost[other] <= cost, new.cost[other] >= cost
    for row in range(used.size):
        no_worse &= new.used[other, row] <= used[row]
        no_better &= new.used[other, row] >= used[row]
    return 1 if no_worse else 2 if no_better else 0


@part
def _place_for(draft: Draft, cost: float, count: int, labels: Generations) -> int:
    """Return where to write a label: -1 if another beats it, `count` for a new place.

    Labels that it beats are left out, and it takes the place of the first of them.
    """
    front, new, heads = draft.front, labels.new, labels.heads
    code = np.uint64(1469598103934665603)
    for k in range(front.size):
        code = (code ^ np.uint64(front[k])) * np.uint64(1099511628211)
    code ^= code >> np.uint64(29)
    head = np.int64(code & np.uint64(heads.size - 1))
    found = count
    other = int(np.int64(heads[head]))
    while other >= 0:
        is_same = True
        for k in range(front.size):
            if new.front[other, k] != front[k]:
                is_same = False
                break
        if is_same:
            order = _compared(cost, draft.used, other, new)
            if order == 1:
                return NONE
            if order == 2:
                if found == count:
                    found = other
                else:
                    new.cost[other] = INF
        other = int(np.int64(new.following[other]))
    if found == count and count < new.cost.size:
        new.following[count] = heads[head]
        heads[head] = count
    return found


@part
def _write(at: int, draft: Draft, cost: float, parent: int, s: int, new: Labels) -> None:
    for k in range(draft.front.size):
        new.front[at, k] = draft.front[k]
    for k in range(draft.value.size):
        new.value[at, k] = draft.value[k]
    for row in range(draft.used.size):
        new.used[at, row] = draft.used[row]
    new.cost[at], new.parent[at], new.choice[at] = cost, parent, s


@part
def _extend(
    i: int, parent: int, num_new: int, task: LabelTask, draft: Draft, labels: Generations
) -> int:
    """Write the labels of one parent; return how many there are then, -1 if there is no room."""
    net, old, new = task.net, labels.old, labels.new
    for s in range(net.size[i]):
        if not _values(i, s, parent, task, old, draft.value):
            continue
        if not _used(i, s, parent, net, old, draft.used):
            continue
        cost = _cost(i, s, parent, task, old)
        if i == net.size.size - 1 and cost >= task.limits.cutoff:
            continue
        if task.place[i] >= 0:
            draft.front[task.place[i]] = s
        at = _place_for(draft, cost, num_new, labels)
        if at < 0:
            continue
        if at == new.cost.size:
            return NONE
        num_new = at + 1 if at == num_new else num_new
        _write(at, draft, cost, parent, s, new)
    return num_new


@part
def _next(i: int, num_old: int, task: LabelTask, draft: Draft, labels: Generations) -> int:
    """Write the labels of one node more; return their number, -1 if room or work is over."""
    old, front, place = labels.old, draft.front, task.place
    num_new = 0 * ONE
    for parent in range(num_old):
        if task.bounds.stop[0] or task.work[0] <= 0:
            return NONE
        if old.cost[parent] == INF:
            continue
        task.work[0] -= task.net.size[i]
        for k in range(front.size):
            front[k] = old.front[parent, k]
        for k in range(i):
            if place[k] >= 0 and task.last[k] == i:
                front[place[k]] = 0
        num_new = _extend(i, parent, num_new, task, draft, labels)
        if num_new < 0:
            most = labels.new.cost.size
            return most if task.limits.beam < most else NONE
    return num_new


@part
def _followed(count: int, first: Ints, parents: Ints32, choices: Ints16, choice: Ints) -> None:
    """Read the choices of a last label backwards; `first[count]` is its number."""
    at = first[count]
    for i in range(count - 1, -1, -1):
        choice[i] = choices[first[i] + at]
        at = np.int64(parents[first[i] + at])


@part
def _thin(beam: int, count: int, bounds: Bounds, after: Floats, new: Labels) -> None:
    """Leave out all but about `beam` labels, those with the least bounds."""
    lowest, highest = INF, -INF
    for at in range(count):
        if new.cost[at] < INF:
            bound = _bound(at, bounds, after, new)
            lowest = bound if bound < lowest else lowest
            highest = bound if bound > highest else highest
    counts = np.zeros(_BINS, np.int64)
    width = (highest - lowest) / (_BINS - 1)
    if not width > 0.0:
        width = 1.0
    for at in range(count):
        if new.cost[at] < INF:
            counts[np.int64((_bound(at, bounds, after, new) - lowest) / width)] += 1
    bins, sum_of_bins = 0 * ONE, 0 * ONE
    while bins < _BINS and sum_of_bins < beam:
        sum_of_bins += counts[bins]
        bins += 1
    kept = 0 * ONE
    for at in range(count):
        if new.cost[at] < INF:
            place = np.int64((_bound(at, bounds, after, new) - lowest) / width)
            if place >= bins or kept >= beam:
                new.cost[at] = INF
            else:
                kept += 1


@part
def _bound(at: int, bounds: Bounds, after: Floats, new: Labels) -> float:
    """Return what a label costs at least once all nodes are chosen."""
    bound = -INF
    for k in range(bounds.base.size):
        value = new.value[at, k] + after[k]
        bound = value if value > bound else bound
    return bound


@kernel
def find_labels(net: Network, bounds: Bounds, limits: LabelLimits, work: Ints, choice: Ints) -> int:
    """Search for the cheapest choice.

    Args:
        net: The network, in an order with small frontiers.
        bounds: What is proved.
        limits: What bounds the search.
        work: Pairs of a label and a choice that may be looked at; what is left of them.
        choice: Result.

    Returns:
        `FOUND` with the best choice, `NOTHING` if none is better than what is known, or `GAVE_UP`.
    """
    lines, rows, count = bounds.base.size, net.capacity.size, net.size.size
    room, beam = limits.room, limits.beam
    place, last, width = frontiers(net)
    least = least_with(net, bounds)
    task = LabelTask(net, bounds, limits, place, last, least, work)
    old, new = _empty(room, width, rows, lines), _empty(room, width, rows, lines)
    old.value[0] = bounds.base
    old.cost[0] = net.constant
    parents, choices = np.empty(1024, np.int32), np.empty(1024, np.int16)
    first = np.zeros(count + 1, np.int64)
    heads = np.full(1024, -1, np.int32)
    draft = Draft(np.zeros(width, np.int16), np.empty(lines), np.empty(rows, np.int64))
    num_old, is_cut = ONE, False
    for i in range(count):
        while heads.size < room and heads.size < num_old * net.size[i]:
            heads = np.empty(2 * heads.size, np.int32)
        heads[:] = -1
        num_new = _next(i, num_old, task, draft, Generations(old, new, heads))
        if num_new < 0:
            return GAVE_UP
        if num_new > beam:
            is_cut = True
            _thin(beam, num_new, bounds, least[:, i + 1], new)
        if num_new == 0:
            return GAVE_UP if is_cut else NOTHING
        first[i + 1] = first[i] + num_new
        parents, choices = grown(parents, first[i + 1]), grown(choices, first[i + 1])
        parents[first[i] : first[i + 1]] = new.parent[:num_new]
        choices[first[i] : first[i + 1]] = new.choice[:num_new]
        old, new = new, old
        num_old = num_new
    best = 0 * ONE
    for k in range(num_old):
        best = k if old.cost[k] < old.cost[best] else best
    first[count] = best
    _followed(count, first, parents, choices, choice)
    return FOUND
