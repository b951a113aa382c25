"""Kernels that drop choices: impossible ones, and those that another choice always beats."""

from __future__ import annotations

import numpy as np

from meshwise.assignment.reductions.arrays import (
    INF,
    INFEASIBLE,
    Edges,
    Items,
    Nodes,
    ReductionBuffers,
    ReductionWork,
    neighbour,
    push,
)
from meshwise.kernels.arrays import Floats, Ints
from meshwise.kernels.compiler import ONE, part


@part
def _has_partner(at: int, step: int, other: int, nodes: Nodes, matrix: Floats) -> bool:
    """Return whether a row (or column) of an edge allows any choice of the other node."""
    for t in range(nodes.size[other]):
        if matrix[at + t * step] < INF and nodes.cost[nodes.start[other] + t] < INF:
            return True
    return False


@part
def _forbid(i: int, s: int, nodes: Nodes) -> int:
    """Price a choice at infinity; 1 if it was not there before."""
    was_left = nodes.cost[nodes.start[i] + s] < INF
    nodes.cost[nodes.start[i] + s] = INF
    return 1 if was_left else 0


@part
def make_consistent(e: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers) -> int:
    """Price choices that the edge forbids with every choice of the other node at infinity.

    Returns:
        Bit 0 if the node u lost a choice, bit 1 if v did.
    """
    u, v, start = edges.u[e], edges.v[e], edges.start[e]
    rows, width, matrix = int(nodes.size[u]), int(nodes.size[v]), buffers.matrices
    lost = 0
    for s in range(rows):
        if not _has_partner(start + s * width, ONE, v, nodes, matrix):
            lost |= _forbid(u, s, nodes)
    for t in range(width):
        if not _has_partner(start + t, width, u, nodes, matrix):
            lost |= 2 * _forbid(v, t, nodes)
    return lost


@part
def _compact_edges(
    i: int,
    kept: Ints,
    nodes: Nodes,
    edges: Edges,
    buffers: ReductionBuffers,
    work: ReductionWork,
) -> None:
    """Keep the rows or columns of some choices in the matrices of a node's edges."""
    matrix = buffers.matrices
    size, count = nodes.size[i], kept.size
    half: int = nodes.first_half[i]
    while half >= 0:
        e = half >> 1
        if edges.alive[e]:
            other, first = neighbour(half, edges), edges.start[e]
            width: int = nodes.size[other]
            if half & 1 == 0:
                for a in range(count):
                    for t in range(width):
                        matrix[first + a * width + t] = matrix[first + kept[a] * width + t]
            else:
                for t in range(width):
                    for a in range(count):
                        matrix[first + t * count + a] = matrix[first + t * size + kept[a]]
            push(other, work)
        half = edges.next_half[half]


@part
def compact(
    i: int, nodes: Nodes, edges: Edges, items: Items, buffers: ReductionBuffers, work: ReductionWork
) -> None:
    """Take the choices of infinite cost out of a node, its edges and its items."""
    size, start = nodes.size[i], nodes.start[i]
    kept = np.empty(size, np.int64)
    count = 0
    for s in range(size):
        if nodes.cost[start + s] < INF:
            kept[count] = s
            count += 1
    if count == 0:
        work.counters[INFEASIBLE] = 1
    if count == 0 or count == size:
        return
    for a in range(count):
        nodes.cost[start + a] = nodes.cost[start + kept[a]]
        nodes.original[start + a] = nodes.original[start + kept[a]]
    _compact_edges(i, kept[:count], nodes, edges, buffers, work)
    item: int = nodes.first_item[i]
    while item >= 0:
        first: int = items.start[item]
        for a in range(count):
            buffers.usages[first + a] = buffers.usages[first + kept[a]]
        item = items.next_item[item]
    nodes.size[i] = count
    push(i, work)


@part
def _uses_no_more(
    a: int, b: int, i: int, nodes: Nodes, items: Items, buffers: ReductionBuffers
) -> bool:
    item: int = nodes.first_item[i]
    while item >= 0:
        first: int = items.start[item]
        if buffers.usages[first + a] > buffers.usages[first + b]:
            return False
        item = items.next_item[item]
    return True


@part
def _costs_no_more(
    a: int, b: int, i: int, nodes: Nodes, edges: Edges, buffers: ReductionBuffers
) -> bool:
    """Return whether choice `a` costs no more than `b` whatever the neighbours choose."""
    size, start, matrix = nodes.size[i], nodes.start[i], buffers.matrices
    dearer = float(nodes.cost[start + a] - nodes.cost[start + b])
    half: int = nodes.first_half[i]
    while half >= 0:
        e = half >> 1
        if edges.alive[e]:
            width, first = nodes.size[neighbour(half, edges)], edges.start[e]
            row, step = (width, 1) if half & 1 == 0 else (1, size)
            worst = -INF
            for t in range(width):
                y = matrix[first + b * row + t * step]
                if y < INF:
                    more = matrix[first + a * row + t * step] - y
                    worst = more if more > worst else worst
                    if worst == INF:
                        return False
            dearer += float(worst)
        half = edges.next_half[half]
    return dearer <= 0


@part
def drop_dominated(
    i: int, nodes: Nodes, edges: Edges, items: Items, buffers: ReductionBuffers
) -> bool:
    """Price choices that another one of the node beats at infinity; whether there were any.

    Of equal ones the first stays.
    """
    start: int = nodes.start[i]
    dropped = False
    for b in range(nodes.size[i] - 1, -1, -1):
        for a in range(nodes.size[i]):
            if a == b or nodes.cost[start + a] == INF:
                continue
            if not _uses_no_more(a, b, i, nodes, items, buffers):
                continue
            if _costs_no_more(a, b, i, nodes, edges, buffers):
                nodes.cost[start + b] = INF
                dropped = True
                break
    return dropped


@part
def settle_items(
    i: int, nodes: Nodes, items: Items, buffers: ReductionBuffers, work: ReductionWork
) -> None:
    """Turn what every choice uses into base load; items that are left empty go."""
    before = -1
    item: int = nodes.first_item[i]
    while item >= 0:
        after: int = items.next_item[item]
        first, low, high = items.start[item], items.low[item], items.high[item]
        least = most = buffers.usages[first]
        for s in range(1, nodes.size[i]):
            used = buffers.usages[first + s]
            least = used if used < least else least
            most = used if used > most else most
        if least != 0:
            work.base[low] += least
            work.base[high] -= least
            for s in range(nodes.size[i]):
                buffers.usages[first + s] -= least
        if least == most:
            if before < 0:
                nodes.first_item[i] = after
            else:
                items.next_item[before] = after
        else:
            before = item
        item = after
