"""Kernels that take nodes and edges out: separable edges, followers, nodes of low degree.

A follower is a node whose choice is a function of a neighbour's: each row of their edge has one
finite entry.  It gives its cost, edges and usage to the neighbour that it follows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.reductions.arrays import (
    INF,
    LOG_USED,
    MATRICES_USED,
    USAGES_USED,
    Edges,
    Items,
    Nodes,
    ReductionBuffers,
    ReductionWork,
    degree,
    grown,
    link,
    neighbour,
    push,
    with_log,
    with_room,
)
from meshwise.kernels.arrays import Floats, Ints
from meshwise.kernels.compiler import NONE, ONE, light_kernel, part

# Records of the log: (kind, node, neighbours..., choices).
ALONE, OF_ONE, OF_TWO = range(3)
# The log has an entry for each pair of choices of a node's two neighbours.
_MOST_PAIRS = 1 << 16


@part
def _entry(
    half: int, s: int, t: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers
) -> float:
    """Return cost of (choice s of the half-edge's node, choice t of the other node)."""
    e = half >> 1
    width = int(nodes.size[edges.v[e]])
    if half & 1 == 0:
        return float(buffers.matrices[edges.start[e] + s * width + t])
    return float(buffers.matrices[edges.start[e] + t * width + s])


@light_kernel
def merge_parallel(
    nodes: Nodes, edges: Edges, buffers: ReductionBuffers, work: ReductionWork
) -> None:
    """Add up edges between the same two nodes."""
    for i in range(nodes.size.size):
        if work.stop[0]:
            break
        half: int = nodes.first_half[i]
        while half >= 0:
            if edges.alive[half >> 1]:
                other = neighbour(half, edges)
                first = work.mark[other]
                if first < 0:
                    work.mark[other] = half
                else:
                    e = first >> 1
                    width = int(nodes.size[edges.v[e]])
                    for s in range(nodes.size[i]):
                        for t in range(nodes.size[other]):
                            at = s * width + t if first & 1 == 0 else t * width + s
                            buffers.matrices[edges.start[e] + at] += _entry(
                                half, s, t, nodes, edges, buffers
                            )
                    edges.alive[half >> 1] = False
            half = edges.next_half[half]
        half = nodes.first_half[i]
        while half >= 0:
            work.mark[neighbour(half, edges)] = -1
            half = edges.next_half[half]


@part
def fold_separable(e: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers) -> bool:
    """Put an edge whose cost is a sum of its ends' own costs into them.

    Return whether it is one.
    """
    u, v, start = edges.u[e], edges.v[e], edges.start[e]
    matrix = buffers.matrices
    width = int(nodes.size[v])
    least = INF
    for t in range(width):
        if matrix[start + t] == INF:
            return False
        least = matrix[start + t] if matrix[start + t] < least else least
    for s in range(1, nodes.size[u]):
        step = matrix[start + s * width] - matrix[start]
        if step == INF:
            return False
        for t in range(1, width):
            if matrix[start + s * width + t] - matrix[start + t] != step:
                return False
    for t in range(width):
        nodes.cost[nodes.start[v] + t] += matrix[start + t] - least
    for s in range(nodes.size[u]):
        nodes.cost[nodes.start[u] + s] += matrix[start + s * width] - matrix[start] + least
    edges.alive[e] = False
    return True


@part
def follows(e: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers) -> int:
    """Return bits: bit 0 if the node v of an edge follows u, bit 1 if u follows v."""
    start, width = edges.start[e], nodes.size[edges.v[e]]
    result = 3
    for s in range(nodes.size[edges.u[e]]):
        count = 0
        for t in range(width):
            count += buffers.matrices[start + s * width + t] < INF
        if count > 1:
            result &= 2
            break
    for t in range(width):
        count = 0
        for s in range(nodes.size[edges.u[e]]):
            count += buffers.matrices[start + s * width + t] < INF
        if count > 1:
            result &= 1
            break
    return result


class Following(NamedTuple):
    """How a node that goes follows another one.

    Attributes:
        leader: The other one.
        choice: Choice of the node for each choice of its leader.
    """

    leader: int
    choice: Ints


@part
def _log_one(
    node: int, following: Following, nodes: Nodes, buffers: ReductionBuffers, work: ReductionWork
) -> ReductionBuffers:
    """Note the choice of a node for each choice of its leader."""
    leader, choice = following.leader, following.choice
    count: int = nodes.original_size[leader]
    buffers = with_log(3 + count, buffers, work)
    top = work.counters[LOG_USED]
    buffers.log[top], buffers.log[top + 1], buffers.log[top + 2] = OF_ONE, node, leader
    buffers.log[top + 3 : top + 3 + count] = -1
    for s in range(nodes.size[leader]):
        mine = nodes.original[nodes.start[node] + choice[s]]
        buffers.log[top + 3 + nodes.original[nodes.start[leader] + s]] = mine
    work.counters[LOG_USED] += 3 + count
    return buffers


@part
def _move_edge(
    half: int,
    following: Following,
    nodes: Nodes,
    edges: Edges,
    buffers: ReductionBuffers,
    work: ReductionWork,
) -> ReductionBuffers:
    """Hang an edge of a follower on its leader, each row that of the follower's choice."""
    leader, image = following.leader, following.choice
    e, other = half >> 1, neighbour(half, edges)
    rows, width = image.size, nodes.size[other]
    values = np.empty((rows, width), np.float64)
    for s in range(rows):
        for t in range(width):
            values[s, t] = _entry(half, image[s], t, nodes, edges, buffers)
    known = work.mark[other]
    if known >= 0:
        at = int(edges.start[known >> 1])
        edges.alive[e] = False
    else:
        if rows * width > edges.room[e]:
            buffers = with_room(rows * width, nodes, edges, buffers, work)
            edges.start[e] = work.counters[MATRICES_USED]
            edges.room[e] = rows * width
            work.counters[MATRICES_USED] += rows * width
        at = edges.start[e]
        if half & 1 == 0:
            edges.u[e] = leader
        else:
            edges.v[e] = leader
        link(half, leader, nodes, edges)
        work.mark[other] = half
    matrix = buffers.matrices
    lies = known if known >= 0 else half
    for s in range(rows):
        for t in range(width):
            place = at + (s * width + t if lies & 1 == 0 else t * rows + s)
            matrix[place] = values[s, t] + (matrix[place] if known >= 0 else 0.0)
    push(other, work)
    return buffers


@part
def absorb(
    leader_half: int,
    nodes: Nodes,
    edges: Edges,
    items: Items,
    buffers: ReductionBuffers,
    work: ReductionWork,
) -> ReductionBuffers:
    """Take out the node at the far end of a half-edge, which follows the one at the near end."""
    e, node = leader_half >> 1, neighbour(leader_half, edges)
    leader = edges.u[e] if leader_half & 1 == 0 else edges.v[e]
    image = np.zeros(nodes.size[leader], np.int64)
    for s in range(nodes.size[leader]):
        added = INF
        for t in range(nodes.size[node]):
            cost = _entry(leader_half, s, t, nodes, edges, buffers)
            if cost < INF:
                image[s] = t
                added = cost + nodes.cost[nodes.start[node] + t]
        nodes.cost[nodes.start[leader] + s] += added
    following = Following(leader, image)
    buffers = _log_one(node, following, nodes, buffers, work)
    edges.alive[e] = False
    nodes.alive[node] = False
    nodes.cost[nodes.start[node]] = 0.0
    half = int(nodes.first_half[leader])
    while half >= 0:
        if edges.alive[half >> 1]:
            work.mark[neighbour(half, edges)] = half
        half = edges.next_half[half]
    half = nodes.first_half[node]
    while half >= 0:
        after: int = edges.next_half[half]
        if edges.alive[half >> 1]:
            buffers = _move_edge(half, following, nodes, edges, buffers, work)
        half = after
    half = int(nodes.first_half[leader])
    while half >= 0:
        work.mark[neighbour(half, edges)] = -1
        half = edges.next_half[half]
    item: int = nodes.first_item[node]
    while item >= 0:
        after = items.next_item[item]
        top = work.counters[USAGES_USED]
        usages = grown(buffers.usages, top + image.size)
        for s in range(image.size):
            usages[top + s] = usages[items.start[item] + image[s]]
        buffers = ReductionBuffers(buffers.matrices, usages, buffers.log)
        work.counters[USAGES_USED] += image.size
        items.start[item] = top
        items.next_item[item] = nodes.first_item[leader]
        nodes.first_item[leader] = item
        item = after
    push(leader, work)
    return buffers


@part
def _fold_alone(
    i: int, nodes: Nodes, buffers: ReductionBuffers, work: ReductionWork
) -> ReductionBuffers:
    best: int = nodes.start[i]
    for s in range(nodes.start[i], nodes.start[i] + nodes.size[i]):
        if nodes.cost[s] < nodes.cost[best]:
            best = s
    buffers = with_log(3 * ONE, buffers, work)
    top = work.counters[LOG_USED]
    buffers.log[top], buffers.log[top + 1] = ALONE, i
    buffers.log[top + 2] = nodes.original[best]
    work.counters[LOG_USED] += 3
    # The first cost of a node that went is the constant that it leaves.
    nodes.cost[nodes.start[i]] = nodes.cost[best]
    return buffers


@part
def _fold_one(
    half: int, i: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers, work: ReductionWork
) -> ReductionBuffers:
    other = neighbour(half, edges)
    image = np.zeros(nodes.size[other], np.int64)
    for t in range(nodes.size[other]):
        least = INF
        for s in range(nodes.size[i]):
            cost = _entry(half, s, t, nodes, edges, buffers) + nodes.cost[nodes.start[i] + s]
            if cost < least:
                least = cost
                image[t] = s
        nodes.cost[nodes.start[other] + t] += least
    buffers = _log_one(i, Following(other, image), nodes, buffers, work)
    edges.alive[half >> 1] = False
    push(other, work)
    return buffers


@part
def _own(half: int, edges: Edges) -> int:
    """Return the node that a half-edge hangs on."""
    return edges.u[half >> 1] if half & 1 == 0 else edges.v[half >> 1]


@part
def _best_between(
    one: int, two: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers
) -> tuple[Floats, Ints]:
    """Return least cost of a node and its choice for each pair of its two neighbours' choices."""
    i, u, w = _own(one, edges), neighbour(one, edges), neighbour(two, edges)
    values = np.empty((nodes.size[u], nodes.size[w]), np.float64)
    choices = np.empty((nodes.size[u], nodes.size[w]), np.int64)
    mine = np.empty(nodes.size[i], np.float64)
    for s in range(nodes.size[u]):
        for t in range(mine.size):
            mine[t] = _entry(one, t, s, nodes, edges, buffers) + nodes.cost[nodes.start[i] + t]
        for x in range(nodes.size[w]):
            least, best = INF, 0
            for t in range(mine.size):
                cost = mine[t] + _entry(two, t, x, nodes, edges, buffers)
                if cost < least:
                    least, best = cost, t
            values[s, x], choices[s, x] = least, best
    return values, choices


@part
def _log_two(
    i: int,
    ends: tuple[int, int],
    choices: Ints,
    nodes: Nodes,
    buffers: ReductionBuffers,
    work: ReductionWork,
) -> ReductionBuffers:
    """Note the choice of a node for each pair of choices of its two neighbours."""
    u, w = ends
    stride: int = nodes.original_size[w]
    count = nodes.original_size[u] * stride
    buffers = with_log(4 + count, buffers, work)
    top = work.counters[LOG_USED]
    buffers.log[top], buffers.log[top + 1] = OF_TWO, i
    buffers.log[top + 2], buffers.log[top + 3] = u, w
    buffers.log[top + 4 : top + 4 + count] = -1
    work.counters[LOG_USED] += 4 + count
    for s in range(nodes.size[u]):
        place = top + 4 + nodes.original[nodes.start[u] + s] * stride
        for x in range(nodes.size[w]):
            mine = nodes.original[nodes.start[i] + choices[s, x]]
            buffers.log[place + nodes.original[nodes.start[w] + x]] = mine
    return buffers


@part
def _fold_two(
    one: int, two: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers, work: ReductionWork
) -> ReductionBuffers:
    """Make the best choices of a node for its neighbours' choices an edge between those."""
    u, w = neighbour(one, edges), neighbour(two, edges)
    values, choices = _best_between(one, two, nodes, edges, buffers)
    buffers = _log_two(_own(one, edges), (u, w), choices, nodes, buffers, work)
    rows, width = values.shape
    edges.alive[one >> 1] = False
    edges.alive[two >> 1] = False
    known: int = nodes.first_half[u]
    while known >= 0 and not (edges.alive[known >> 1] and neighbour(known, edges) == w):
        known = edges.next_half[known]
    if known < 0:
        # The edge to w becomes one from u: its half at w stays, the other one moves.
        e = two >> 1
        buffers = with_room(rows * width, nodes, edges, buffers, work)
        edges.start[e] = work.counters[MATRICES_USED]
        edges.room[e] = rows * width
        work.counters[MATRICES_USED] += rows * width
        edges.alive[e] = True
        if two & 1 == 0:
            edges.u[e] = u
        else:
            edges.v[e] = u
        link(two, u, nodes, edges)
    lies = two if known < 0 else known
    at: int = edges.start[lies >> 1]
    for s in range(rows):
        for x in range(width):
            place = at + (s * width + x if lies & 1 == 0 else x * rows + s)
            before = buffers.matrices[place] if known >= 0 else 0.0
            buffers.matrices[place] = values[s, x] + before
    push(u, work)
    push(w, work)
    return buffers


@part
def may_eliminate(i: int, nodes: Nodes, edges: Edges) -> bool:
    """Return whether a node without usage has few edges, and few pairs of choices to note."""
    count = degree(i, nodes, edges)
    if count < 2:
        return True
    pairs = 1
    half: int = nodes.first_half[i]
    while half >= 0:
        pairs *= nodes.original_size[neighbour(half, edges)]
        half = edges.next_half[half]
        if pairs > _MOST_PAIRS:
            return False
    return count == 2


@part
def eliminate(
    i: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers, work: ReductionWork
) -> ReductionBuffers:
    """Take out a node without usage that has at most two edges."""
    one = two = NONE
    half: int = nodes.first_half[i]
    while half >= 0:
        if edges.alive[half >> 1]:
            two = one
            one = half
        half = edges.next_half[half]
    nodes.alive[i] = False
    if one < 0:
        return _fold_alone(i, nodes, buffers, work)
    if two < 0:
        buffers = _fold_one(one, i, nodes, edges, buffers, work)
    else:
        buffers = _fold_two(one, two, nodes, edges, buffers, work)
    nodes.cost[nodes.start[i]] = 0.0
    return buffers
