"""The compiled passes of coordinate descent: without rows, and within them."""

# pyright: basic
# Kernels: Numba checks their types when it compiles them.
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.network import Network
from meshwise.assignment.problem import Problem
from meshwise.kernels.compiler import kernel, part

Ints = NDArray[np.int64]
Array = Any
# Of a node, a pair, a row or an entry.
Number = Any


class NodeRows(NamedTuple):
    """The rows of a problem, by node: what each node weighs, alone and with another one.

    Attributes:
        entry_at: Where the entries of each node begin, and where those of the last end; sorted by
            row, the weights of the node alone before those of pairs.
        row: Row of each entry.
        other: The other node of the pair, -1 for the node alone.
        is_first: Whether the node is the first of the pair.
        weight_at: Where the weights of each entry begin in `weight`.
        weight: Weights of nodes and pairs, those of pairs (first's choice, second's choice).
        limit: Of each row.
    """

    entry_at: Ints
    row: Ints
    other: Ints
    is_first: NDArray[np.bool_]
    weight_at: Ints
    weight: NDArray[np.float64]
    limit: NDArray[np.float64]

    @classmethod
    def of(cls, problem: Problem) -> NodeRows:
        """The rows of a problem."""
        entries: list[list[tuple[int, int, bool, int]]] = [[] for _ in problem.costs]
        weights: list[NDArray[np.float64]] = [np.zeros(0)]
        at = 0
        for k, row in enumerate(problem.rows):
            for u, alone in row.nodes:
                entries[u].append((k, -1, True, at))
                weights.append(alone)
                at += alone.size
            for u, v, both in row.pairs:
                entries[u].append((k, v, True, at))
                entries[v].append((k, u, False, at))
                weights.append(both.ravel())
                at += both.size
        every = [entry for of_node in entries for entry in of_node]
        return cls(
            entry_at=np.cumsum([0, *map(len, entries)], dtype=np.int64),
            row=np.array([k for k, _, _, _ in every], np.int64),
            other=np.array([v for _, v, _, _ in every], np.int64),
            is_first=np.array([first for _, _, first, _ in every], np.bool_),
            weight_at=np.array([a for _, _, _, a in every], np.int64),
            weight=np.concatenate(weights).astype(np.float64),
            limit=np.array([row.limit for row in problem.rows], np.float64),
        )


class DescentScratch(NamedTuple):
    """Memory of the passes: costs and weights of two nodes, and of a pair.

    Attributes:
        cost: (2, most choices of a node).
        weight: (2, most choices of a node).
        pair_cost: (most choices of a node, most choices of a node).
        pair_weight: As `pair_cost`.
        both: As `pair_cost`.
    """

    cost: NDArray[np.float64]
    weight: NDArray[np.float64]
    pair_cost: NDArray[np.float64]
    pair_weight: NDArray[np.float64]
    both: NDArray[np.float64]

    @classmethod
    def of(cls, net: Network) -> DescentScratch:
        """For a problem."""
        most = int(net.size.max(initial=0))
        one, two = (2, most), (most, most)
        return cls(np.zeros(one), np.zeros(one), np.zeros(two), np.zeros(two), np.zeros(two))


@part
def _cost_at(i: Number, without: Number, net: Network, choice: Array, total: Array) -> None:
    """Cost of each choice of node `i` with its neighbours as they are, but for one (-1: none)."""
    start, size = net.first_choice[i], net.size[i]
    total[:size] = net.cost[start : start + size]
    for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
        e = net.earlier[k]
        other = net.u[e]
        if other != without:
            row = net.first_entry[e] + choice[other] * size
            for s in range(size):
                total[s] += net.matrices[row + s]
    for k in range(net.first_later[i], net.first_later[i + 1]):
        e = net.later[k]
        other = net.v[e]
        if other != without:
            others = net.size[other]
            column = net.first_entry[e] + choice[other]
            for s in range(size):
                total[s] += net.matrices[column + s * others]


@kernel
def descend(sweeps: int, net: Network, scratch: Array, choice: Array) -> None:
    """Take the best choice node by node until nothing changes; rows are not looked at.

    Args:
        sweeps: At most so many.
        net: Costs, infinite ones too.
        scratch: As long as a node has choices at most.
        choice: Of all nodes; changed.
    """
    for _ in range(sweeps):
        changed = False
        for i in range(net.size.size):
            _cost_at(i, -1, net, choice, scratch)
            best = np.argmin(scratch[: net.size[i]])
            if scratch[best] < scratch[choice[i]]:
                choice[i] = best
                changed = True
        if not changed:
            return


@part
def _weigh(
    p: Number, size: Number, net: Network, rows: NodeRows, choice: Array, weight: Array
) -> None:
    """Add entry `p` to the weight of each choice of its node, with its neighbour as it is."""
    at, other = rows.weight_at[p], rows.other[p]
    if other < 0:
        for s in range(size):
            weight[s] += rows.weight[at + s]
    elif rows.is_first[p]:
        others = net.size[other]
        column = at + choice[other]
        for s in range(size):
            weight[s] += rows.weight[column + s * others]
    else:
        row = at + choice[other] * size
        for s in range(size):
            weight[s] += rows.weight[row + s]


@part
def _weigh_row(
    p: Number,
    k: Number,
    i: Number,
    without: Number,
    net: Network,
    rows: NodeRows,
    choice: Array,
    weight: Array,
) -> Number:
    """Weight of each choice of node `i` in row `k`; the entry behind those of the row.

    Args:
        p: The first entry of the node that may be of the row.
        k: The row.
        i: The node.
        without: A neighbour that is left out, -1 for none.
        net: The problem.
        rows: Its rows.
        choice: Of all nodes.
        weight: For the result.
    """
    size = net.size[i]
    weight[:size] = 0.0
    while p < rows.entry_at[i + 1] and rows.row[p] == k:
        if without < 0 or rows.other[p] != without:
            _weigh(p, size, net, rows, choice, weight)
        p += 1
    return p


@part
def _move_one(
    i: Number, net: Network, rows: NodeRows, choice: Array, room: Array, scratch: DescentScratch
) -> bool:
    """Take the cheapest choice of node `i` that keeps all rows."""
    cost, weight = scratch.cost[0], scratch.weight[0]
    _cost_at(i, -1, net, choice, cost)
    size, now = net.size[i], choice[i]
    p = rows.entry_at[i]
    while p < rows.entry_at[i + 1]:
        k = rows.row[p]
        p = _weigh_row(p, k, i, -1, net, rows, choice, weight)
        for s in range(size):
            if weight[s] - weight[now] > room[k]:
                cost[s] = np.inf
    best = np.argmin(cost[:size])
    if not cost[best] < cost[now]:
        return False
    p = rows.entry_at[i]
    while p < rows.entry_at[i + 1]:
        k = rows.row[p]
        p = _weigh_row(p, k, i, -1, net, rows, choice, weight)
        room[k] -= weight[best] - weight[now]
    choice[i] = best
    return True


@part
def _weigh_both(
    k: Number,
    p: Number,
    q: Number,
    e: Number,
    net: Network,
    rows: NodeRows,
    choice: Array,
    scratch: DescentScratch,
) -> None:
    """Weight of each pair of choices of the nodes of pair `e` in row `k`.

    Args:
        k: The row.
        p: The first entry of the first node that is of the row, or behind all.
        q: The same of the second node.
        e: The pair.
        net: The problem.
        rows: Its rows.
        choice: Of all nodes.
        scratch: For the result, in `pair_weight`.
    """
    i, j = net.u[e], net.v[e]
    size, others = net.size[i], net.size[j]
    left, right = scratch.weight[0], scratch.weight[1]
    end = _weigh_row(p, k, i, j, net, rows, choice, left)
    _weigh_row(q, k, j, i, net, rows, choice, right)
    for s in range(size):
        for t in range(others):
            scratch.pair_weight[s, t] = left[s] + right[t]
    for r in range(p, end):
        if rows.other[r] == j:
            at = rows.weight_at[r]
            for s in range(size):
                for t in range(others):
                    scratch.pair_weight[s, t] += rows.weight[at + s * others + t]


@part
def _row_of(p: Number, i: Number, rows: NodeRows) -> Number:
    """Row of entry `p` of node `i`; behind all rows if there is none."""
    return rows.row[p] if p < rows.entry_at[i + 1] else len(rows.limit)


@part
def _behind(p: Number, k: Number, i: Number, rows: NodeRows) -> Number:
    """The first entry of node `i` from `p` on that is not of row `k`."""
    while _row_of(p, i, rows) == k:
        p += 1
    return p


@part
def _price_both(e: Number, net: Network, choice: Array, scratch: DescentScratch) -> None:
    """Cost of each pair of choices of the nodes of pair `e`, in `pair_cost`."""
    i, j = net.u[e], net.v[e]
    size, others = net.size[i], net.size[j]
    left, right = scratch.cost[0], scratch.cost[1]
    _cost_at(i, j, net, choice, left)
    _cost_at(j, i, net, choice, right)
    at = net.first_entry[e]
    for s in range(size):
        for t in range(others):
            scratch.pair_cost[s, t] = left[s] + right[t] + net.matrices[at + s * others + t]


@part
def _cheapest(cost: Array) -> tuple[int, int]:
    """Where the first of the least costs is."""
    s, t = 0, 0
    for x in range(cost.shape[0]):
        for y in range(cost.shape[1]):
            if cost[x, y] < cost[s, t]:
                s, t = x, y
    return s, t


@part
def _move_two(
    e: Number, net: Network, rows: NodeRows, choice: Array, room: Array, scratch: DescentScratch
) -> bool:
    """Take the cheapest choices of the nodes of pair `e` that keep all rows."""
    i, j = net.u[e], net.v[e]
    a, b = choice[i], choice[j]
    size, others = net.size[i], net.size[j]
    _price_both(e, net, choice, scratch)
    cost, weight = scratch.pair_cost[:size, :others], scratch.pair_weight
    if not cost.min() < cost[a, b]:
        return False
    p, q = rows.entry_at[i], rows.entry_at[j]
    while True:
        k = min(_row_of(p, i, rows), _row_of(q, j, rows))
        if k == len(rows.limit):
            break
        _weigh_both(k, p, q, e, net, rows, choice, scratch)
        for s in range(size):
            for t in range(others):
                if weight[s, t] - weight[a, b] > room[k]:
                    cost[s, t] = np.inf
        p, q = _behind(p, k, i, rows), _behind(q, k, j, rows)
    s, t = _cheapest(cost)
    if not cost[s, t] < cost[a, b]:
        return False
    p, q = rows.entry_at[i], rows.entry_at[j]
    while True:
        k = min(_row_of(p, i, rows), _row_of(q, j, rows))
        if k == len(rows.limit):
            break
        _weigh_both(k, p, q, e, net, rows, choice, scratch)
        room[k] -= weight[s, t] - weight[a, b]
        p, q = _behind(p, k, i, rows), _behind(q, k, j, rows)
    choice[i], choice[j] = s, t
    return True


@kernel
def descend_within(
    sweeps: int, net: Network, rows: NodeRows, room: Array, scratch: DescentScratch, choice: Array
) -> None:
    """Take the best choices node by node and pair by pair until nothing changes.

    Args:
        sweeps: At most so many.
        net: Costs, infinite ones too.
        rows: That must be kept.
        room: Of each row at `choice`; changed.
        scratch: Of the problem.
        choice: Of all nodes, within the rows; changed.
    """
    for _ in range(sweeps):
        changed = False
        for i in range(net.size.size):
            changed |= _move_one(i, net, rows, choice, room, scratch)
        for e in range(len(net.u)):
            changed |= _move_two(e, net, rows, choice, room, scratch)
        if not changed:
            return
