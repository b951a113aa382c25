"""The form on which bounds and searches work: both kinds of problem become a network of arrays.

A planner's `Problem` becomes one without rows (`cost_network`), an `Instance` one with a row for
each moment (`network_of`), and the reductions make a smaller one of either (`build_network`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwise.assignment.instance import INFINITE_COST, Instance
from meshwise.assignment.problem import PairCost, Problem
from meshwise.assignment.reductions.arrays import (
    Edges,
    Items,
    Nodes,
    ReductionBuffers,
    ReductionState,
    least_in,
)
from meshwise.kernels.arrays import Bools, Floats, Ints
from meshwise.kernels.compiler import NONE, ONE, light_kernel, part


class Network(NamedTuple):
    """Nodes in an order, edges from earlier to later ones, usage in rows that can bind.

    A tuple of arrays, so that compiled kernels take it whole.

    Attributes:
        size: Number of choices of each node.
        first_choice: Where they begin in `cost`; one entry more than nodes.
        cost: Cost of each choice.
        u: Earlier node of each edge.
        v: Later node of each edge.
        first_entry: Where its matrix begins in `matrices`; one entry more than edges.
        matrices: Costs, row-major over (choices of u, choices of v).
        first_u: Where each edge's values for the choices of u begin in a message array.
        first_v: The same for the choices of v.
        first_later: Where the edges to later nodes begin in `later`; one entry more than nodes.
        later: Edges to later nodes, node by node.
        first_earlier: The same for edges to earlier nodes.
        earlier: Edges to earlier nodes, node by node.
        item_low: First row of each usage item; those of a node do not overlap.
        item_high: First row after it.
        first_item: Where the items of each node begin; one entry more than nodes.
        first_usage: Where the bytes of each item begin in `usage`.
        usage: Bytes of each choice of the item's node; the least one is 0.
        capacity: Bytes that each row has for the items.
        constant: Cost besides.
    """

    size: Ints
    first_choice: Ints
    cost: Floats
    u: Ints
    v: Ints
    first_entry: Ints
    matrices: Floats
    first_u: Ints
    first_v: Ints
    first_later: Ints
    later: Ints
    first_earlier: Ints
    earlier: Ints
    item_low: Ints
    item_high: Ints
    first_item: Ints
    first_usage: Ints
    usage: Ints
    capacity: Ints
    constant: float


def starts(counts: Ints | Bools) -> Ints:
    """Return the sums of all counts before each one, and of all.

    Args:
        counts: Numbers, or whether each one counts.
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int64)


@light_kernel
def _copied_matrices(
    chosen: Ints, flip: Bools, first: Ints, nodes: Nodes, edges: Edges, buffers: ReductionBuffers
) -> Floats:
    out = np.empty(first[first.size - 1], np.float64)
    for k in range(chosen.size):
        e = chosen[k]
        rows, width = nodes.size[edges.u[e]], nodes.size[edges.v[e]]
        for s in range(rows):
            for t in range(width):
                place = t * rows + s if flip[k] else s * width + t
                out[first[k] + place] = buffers.matrices[edges.start[e] + s * width + t]
    return out


@part
def _place(row: int, cuts: Ints, count: int) -> int:
    """Return how many of the first cuts, which ascend, lie before a row."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if cuts[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@part
def _cuts(i: int, row_of: Ints, nodes: Nodes, items: Items, cuts: Ints) -> int:
    """Write the rows at which items of a node begin or end, ascending; returns their number."""
    count = NONE + 1
    item: int = nodes.first_item[i]
    while item >= 0:
        for row in (row_of[items.low[item]], row_of[items.high[item]]):
            at = _place(int(row), cuts, count)
            if at < count and cuts[at] == row:
                continue
            for k in range(count, at, -1):
                cuts[k] = cuts[k - 1]
            cuts[at] = row
            count += 1
        item = items.next_item[item]
    return count


@light_kernel
def _pieces(
    alive: Ints,
    row_of: Ints,
    nodes: Nodes,
    items: Items,
    buffers: ReductionBuffers,
    capacity: Ints,
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Cut the usage of each node into pieces apart; take its least bytes from `capacity`.

    Returns:
        Number of pieces of each node, their first rows, the first rows after them, their sizes, and
        the bytes of each choice, piece by piece.
    """
    counts = np.zeros(alive.size, np.int64)
    lows, highs, widths = [0 * ONE], [0 * ONE], [0 * ONE]
    bytes_of = [0 * ONE]
    cuts = np.empty(row_of.size, np.int64)
    for position in range(alive.size):
        i = alive[position]
        size = int(nodes.size[i])
        num_cuts = _cuts(i, row_of, nodes, items, cuts)
        if num_cuts == 0:
            continue
        change = np.zeros(num_cuts * size, np.int64)
        item = int(nodes.first_item[i])
        while item >= 0:
            first: int = items.start[item]
            low = _place(int(row_of[items.low[item]]), cuts, num_cuts)
            high = _place(int(row_of[items.high[item]]), cuts, num_cuts)
            for s in range(size):
                change[low * size + s] += buffers.usages[first + s]
                change[high * size + s] -= buffers.usages[first + s]
            item = items.next_item[item]
        for k in range(num_cuts - 1):
            if k:
                for s in range(size):
                    change[k * size + s] += change[(k - 1) * size + s]
            least, differs = least_in(change, k * size, (k + 1) * size), False
            for s in range(size):
                differs |= change[k * size + s] != least
            for row in range(cuts[k], cuts[k + 1]):
                capacity[row] -= least
            if not differs:
                continue
            counts[position] += 1
            lows.append(cuts[k])
            highs.append(cuts[k + 1])
            widths.append(size)
            bytes_of.extend([change[k * size + s] - least for s in range(size)])
    return (
        counts,
        np.array(lows[1:], dtype=np.int64),
        np.array(highs[1:], dtype=np.int64),
        np.array(widths[1:], dtype=np.int64),
        np.array(bytes_of[1:], dtype=np.int64),
    )


def cost_network(problem: Problem) -> Network:
    """Return the network of a planner's problem, whole; rows are left out.

    Args:
        problem: The problem; u < v in each pair.
    """
    size = np.array([len(costs) for costs in problem.costs], np.int64)
    u = np.array([pair.u for pair in problem.pairs], np.int64)
    v = np.array([pair.v for pair in problem.pairs], np.int64)
    return network_without_rows(
        size, _joined(problem.costs), u, v, _joined([pair.cost.ravel() for pair in problem.pairs])
    )


def network_of(instance: Instance) -> Network:
    """Return the network of an instance, whole; each moment between two times is a row.

    Args:
        instance: The instance.
    """
    times, ranks = np.unique(instance.intervals, return_inverse=True)
    ranks = ranks.reshape(-1, 2)
    has_item = (ranks[:, 0] < ranks[:, 1]) & (instance.limit is not None)
    num_rows = max(len(times) - 1, 0) if instance.limit is not None else 0
    owner = np.flatnonzero(has_item)
    network = network_without_rows(
        np.diff(instance.first_choice),
        _finite_or_infinite(instance.costs),
        instance.edges[:, 0].copy(),
        instance.edges[:, 1].copy(),
        _finite_or_infinite(instance.edge_costs),
    )
    return network._replace(
        item_low=ranks[owner, 0],
        item_high=ranks[owner, 1],
        first_item=starts(has_item),
        first_usage=instance.first_choice[:-1][owner],
        usage=instance.usages,
        capacity=np.full(num_rows, instance.limit or 0, np.int64),
    )


def _finite_or_infinite(costs: Ints) -> Floats:
    return np.where(costs >= INFINITE_COST, np.inf, costs.astype(np.float64))


def network_without_rows(size: Ints, cost: Floats, u: Ints, v: Ints, matrices: Floats) -> Network:
    """Return a network of nodes and edges alone; the arguments are those of `Network`."""
    none = np.zeros(0, np.int64)
    return Network(
        size=size,
        first_choice=starts(size),
        cost=cost,
        u=u,
        v=v,
        first_entry=starts(size[u] * size[v]),
        matrices=matrices,
        first_u=starts(size[u])[:-1],
        first_v=starts(size[v])[:-1],
        first_later=starts(np.bincount(u, minlength=len(size))),
        later=np.argsort(u, kind="stable"),
        first_earlier=starts(np.bincount(v, minlength=len(size))),
        earlier=np.argsort(v, kind="stable"),
        item_low=none,
        item_high=none,
        first_item=np.zeros(len(size) + 1, np.int64),
        first_usage=none,
        usage=none,
        capacity=none,
        constant=0.0,
    )


def _joined(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate(arrays).astype(np.float64) if len(arrays) else np.zeros(0)


def problem_of(network: Network) -> Problem:
    """Return the nodes and edges of a network as a planner's problem, without the constant.

    Args:
        network: The network; its rows are left out.
    """
    size, first = network.size, network.first_entry
    costs = np.split(network.cost, network.first_choice[1:-1]) if len(size) else []
    ends = zip(network.u.tolist(), network.v.tolist(), strict=True)
    pairs = [
        PairCost(u=u, v=v, cost=network.matrices[first[e] : first[e + 1]].reshape(size[u], size[v]))
        for e, (u, v) in enumerate(ends)
    ]
    return Problem(costs=tuple(costs), pairs=tuple(pairs))


def build_network(
    state: ReductionState, binding: Bools, capacity: Ints, constant: float
) -> Network:
    """Return the nodes, edges and rows that the reductions left.

    Args:
        state: What they left, its items trimmed to the binding times.
        binding: Which times have a row.
        capacity: Bytes that the base load leaves at each time.
        constant: Cost that left the problem.
    """
    nodes, edges = state.nodes, state.edges
    alive = np.flatnonzero(nodes.alive)
    number = np.full(len(nodes.size), -1)
    number[alive] = np.arange(len(alive))
    size = nodes.size[alive]
    first_choice = starts(size)
    moved: Ints = nodes.start[alive] - first_choice[:-1]
    picked = np.repeat(moved, size) + np.arange(int(first_choice[-1]))
    left = np.flatnonzero(edges.alive)
    u, v = number[edges.u[left]], number[edges.v[left]]
    low, high = np.minimum(u, v), np.maximum(u, v)
    order = np.lexsort((high, low))
    left, flip, low, high = left[order], (u > v)[order], low[order], high[order]
    first_entry = starts(size[low] * size[high])
    matrices = _copied_matrices(left, flip, first_entry, nodes, edges, state.buffers)
    left_over = capacity[binding]
    counts, item_low, item_high, widths, usage = _pieces(
        alive, starts(binding), nodes, state.items, state.buffers, left_over
    )
    return network_without_rows(size, nodes.cost[picked], low, high, matrices)._replace(
        item_low=item_low,
        item_high=item_high,
        first_item=starts(counts),
        first_usage=starts(widths)[:-1],
        usage=usage,
        capacity=left_over,
        constant=constant,
    )
