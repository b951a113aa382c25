"""The compiled passes of coordinate descent: without rows, and within them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwise.assignment.network import Network
from meshwise.assignment.problem import Problem
from meshwise.kernels.arrays import Bools, Floats, Ints
from meshwise.kernels.compiler import kernel, light_kernel, part


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
        limit: Limit of each row.
    """

    entry_at: Ints
    row: Ints
    other: Ints
    is_first: Bools
    weight_at: Ints
    weight: Floats
    limit: Floats

    @classmethod
    def of(cls, problem: Problem) -> NodeRows:
        """Return the rows of a problem."""
        entries: list[list[tuple[int, int, bool, int]]] = [[] for _ in problem.costs]
        weights: list[Floats] = [np.zeros(0)]
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


class RowTask(NamedTuple):
    """A problem with rows.

    Attributes:
        net: Its costs.
        rows: Its rows.
    """

    net: Network
    rows: NodeRows


class DescentScratch(NamedTuple):
    """Memory of the passes: costs and weights of two nodes, and of a pair.

    Attributes:
        cost: (2, most choices of a node).
        weight: (2, most choices of a node).
        pair_cost: (most choices of a node, most choices of a node).
        pair_weight: As `pair_cost`.
    """

    cost: Floats
    weight: Floats
    pair_cost: Floats
    pair_weight: Floats

    @classmethod
    def of(cls, net: Network) -> DescentScratch:
        """Return memory for a problem."""
        most = int(net.size.max(initial=0))
        one, two = (2, most), (most, most)
        return cls(np.zeros(one), np.zeros(one), np.zeros(two), np.zeros(two))


@part
def _cost_at(i: int, without: int, net: Network, choice: Ints, total: Floats) -> None:
    """Write the cost of each choice of node `i` beside its neighbours, but for one (-1: none)."""
    start, size = net.first_choice[i], net.size[i]
    total[:size] = net.cost[start : start + size]
    for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
        e: int = net.earlier[k]
        other: int = net.u[e]
        if other != without:
            row = net.first_entry[e] + choice[other] * size
            for s in range(size):
                total[s] += net.matrices[row + s]
    for k in range(net.first_later[i], net.first_later[i + 1]):
        e = net.later[k]
        other = net.v[e]
        if other != without:
            others: int = net.size[other]
            column: int = net.first_entry[e] + choice[other]
            for s in range(size):
                total[s] += net.matrices[column + s * others]


@light_kernel
def descend(sweeps: int, net: Network, scratch: Floats, choice: Ints) -> None:
    """Take the best choice node by node until nothing changes; rows are not looked at.

    Args:
        sweeps: Largest number of sweeps.
        net: Costs, infinite ones too.
        scratch: As long as a node has choices at most.
        choice: One choice for each node; changed.
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
def _weigh(p: int, size: int, task: RowTask, choice: Ints, weight: Floats) -> None:
    """Add entry `p` to the weight of each choice of its node, with its neighbour as it is."""
    rows = task.rows
    at: int = rows.weight_at[p]
    other: int = rows.other[p]
    if other < 0:
        for s in range(size):
            weight[s] += rows.weight[at + s]
    elif rows.is_first[p]:
        others: int = task.net.size[other]
        column = at + choice[other]
        for s in range(size):
            weight[s] += rows.weight[column + s * others]
    else:
        row = at + choice[other] * size
        for s in range(size):
            weight[s] += rows.weight[row + s]


@part
def _weigh_row(
    span: tuple[int, int], i: int, without: int, task: RowTask, choice: Ints, weight: Floats
) -> None:
    """Write the weight of each choice of a node in one row.

    Args:
        span: The node's first entry of the row, and the one behind the last.
        i: The node.
        without: A neighbour that is left out, -1 for none.
        task: The problem.
        choice: One choice for each node.
        weight: Result.
    """
    size: int = task.net.size[i]
    weight[:size] = 0.0
    for p in range(span[0], span[1]):
        if without < 0 or task.rows.other[p] != without:
            _weigh(p, size, task, choice, weight)


@part
def _row_of(p: int, i: int, rows: NodeRows) -> int:
    """Return row of entry `p` of node `i`; behind all rows if there is none."""
    return rows.row[p] if p < rows.entry_at[i + 1] else len(rows.limit)


@part
def _behind(p: int, k: int, i: int, rows: NodeRows) -> int:
    """Return the first entry of node `i` from `p` on that is not of row `k`."""
    while _row_of(p, i, rows) == k:
        p += 1
    return p


@part
def _move_one(i: int, task: RowTask, choice: Ints, room: Floats, scratch: DescentScratch) -> bool:
    """Take the cheapest choice of node `i` that keeps all rows."""
    net, rows = task.net, task.rows
    cost, weight = scratch.cost[0], scratch.weight[0]
    _cost_at(i, -1, net, choice, cost)
    size: int = net.size[i]
    now: int = choice[i]
    p: int = rows.entry_at[i]
    while p < rows.entry_at[i + 1]:
        k: int = rows.row[p]
        end = _behind(p, k, i, rows)
        _weigh_row((p, end), i, -1, task, choice, weight)
        for s in range(size):
            if weight[s] - weight[now] > room[k]:
                cost[s] = np.inf
        p = end
    best = np.argmin(cost[:size])
    if not cost[best] < cost[now]:
        return False
    p = rows.entry_at[i]
    while p < rows.entry_at[i + 1]:
        k = rows.row[p]
        end = _behind(p, k, i, rows)
        _weigh_row((p, end), i, -1, task, choice, weight)
        room[k] -= weight[best] - weight[now]
        p = end
    choice[i] = best
    return True


@part
def _weigh_both(
    u_span: tuple[int, int],
    v_span: tuple[int, int],
    e: int,
    task: RowTask,
    choice: Ints,
    scratch: DescentScratch,
) -> None:
    """Write the weight of each pair of choices of the nodes of pair `e` in one row.

    Args:
        u_span: The first node's first entry of the row, and the one behind the last.
        v_span: The same of the second node.
        e: The pair.
        task: The problem.
        choice: One choice for each node.
        scratch: For the result, in `pair_weight`.
    """
    net, rows = task.net, task.rows
    i: int = net.u[e]
    j: int = net.v[e]
    size: int = net.size[i]
    others: int = net.size[j]
    left, right = scratch.weight[0], scratch.weight[1]
    _weigh_row(u_span, i, j, task, choice, left)
    _weigh_row(v_span, j, i, task, choice, right)
    for s in range(size):
        for t in range(others):
            scratch.pair_weight[s, t] = left[s] + right[t]
    for r in range(u_span[0], u_span[1]):
        if rows.other[r] == j:
            at = rows.weight_at[r]
            for s in range(size):
                for t in range(others):
                    scratch.pair_weight[s, t] += rows.weight[at + s * others + t]


@part
def _price_both(e: int, net: Network, choice: Ints, scratch: DescentScratch) -> None:
    """Write the cost of each pair of choices of the nodes of pair `e` into `pair_cost`."""
    i: int = net.u[e]
    j: int = net.v[e]
    size: int = net.size[i]
    others: int = net.size[j]
    left, right = scratch.cost[0], scratch.cost[1]
    _cost_at(i, j, net, choice, left)
    _cost_at(j, i, net, choice, right)
    at: int = net.first_entry[e]
    for s in range(size):
        for t in range(others):
            scratch.pair_cost[s, t] = left[s] + right[t] + net.matrices[at + s * others + t]


@part
def _cheapest(cost: Floats) -> tuple[int, int]:
    """Return where the first of the least costs is."""
    s, t = 0, 0
    for x in range(cost.shape[0]):
        for y in range(cost.shape[1]):
            if cost[x, y] < cost[s, t]:
                s, t = x, y
    return s, t


@part
def _move_two(e: int, task: RowTask, choice: Ints, room: Floats, scratch: DescentScratch) -> bool:
    """Take the cheapest choices of the nodes of pair `e` that keep all rows."""
    net, rows = task.net, task.rows
    i: int = net.u[e]
    j: int = net.v[e]
    a: int = choice[i]
    b: int = choice[j]
    size: int = net.size[i]
    others: int = net.size[j]
    _price_both(e, net, choice, scratch)
    cost, weight = scratch.pair_cost[:size, :others], scratch.pair_weight
    if not cost.min() < cost[a, b]:
        return False
    p: int = rows.entry_at[i]
    q: int = rows.entry_at[j]
    while True:
        k = min(_row_of(p, i, rows), _row_of(q, j, rows))
        if k == len(rows.limit):
            break
        u_end, v_end = _behind(p, k, i, rows), _behind(q, k, j, rows)
        _weigh_both((p, u_end), (q, v_end), e, task, choice, scratch)
        for s in range(size):
            for t in range(others):
                if weight[s, t] - weight[a, b] > room[k]:
                    cost[s, t] = np.inf
        p, q = u_end, v_end
    s, t = _cheapest(cost)
    if not cost[s, t] < cost[a, b]:
        return False
    p, q = rows.entry_at[i], rows.entry_at[j]
    while True:
        k = min(_row_of(p, i, rows), _row_of(q, j, rows))
        if k == len(rows.limit):
            break
        u_end, v_end = _behind(p, k, i, rows), _behind(q, k, j, rows)
        _weigh_both((p, u_end), (q, v_end), e, task, choice, scratch)
        room[k] -= weight[s, t] - weight[a, b]
        p, q = u_end, v_end
    choice[i], choice[j] = s, t
    return True


@kernel
def descend_within(
    sweeps: int, task: RowTask, room: Floats, scratch: DescentScratch, choice: Ints
) -> None:
    """Take the best choices node by node and pair by pair until nothing changes.

    Args:
        sweeps: Largest number of sweeps.
        task: Costs, infinite ones too, and rows that must be kept.
        room: What `choice` leaves in each row; changed.
        scratch: Memory for the problem.
        choice: One choice for each node, within the rows; changed.
    """
    for _ in range(sweeps):
        changed = False
        for i in range(task.net.size.size):
            changed |= _move_one(i, task, choice, room, scratch)
        for e in range(len(task.net.u)):
            changed |= _move_two(e, task, choice, room, scratch)
        if not changed:
            return
