"""The compiled passes of dual ascent over a flat problem."""

# pyright: basic
# Kernels: Numba checks their types when it compiles them.
from __future__ import annotations

from typing import Any

import numpy as np

from meshwise.assignment.flat_problem import Flat, cost_before
from meshwise.kernels.compiler import kernel, part

Array = Any


@part
def _pull(i: int, flat: Flat, least: Array) -> None:
    """Move to node `i` what its pairs cost at least for each of its choices."""
    start = flat.node_at[i]
    size = flat.node_at[i + 1] - start
    for k in range(flat.around_at[i], flat.around_at[i + 1]):
        e = flat.around[k]
        at, end = flat.pair_at[e], flat.pair_at[e + 1]
        if flat.u[e] == i:
            others = (end - at) // size
            for s in range(size):
                row = at + s * others
                low = flat.matrix[row : row + others].min()
                for t in range(others):
                    flat.matrix[row + t] -= low
                flat.cost[start + s] += low
        else:
            others = (end - at) // size
            for s in range(size):
                least[s] = flat.matrix[at + s]
            for t in range(1, others):
                row = at + t * size
                for s in range(size):
                    least[s] = min(least[s], flat.matrix[row + s])
            for t in range(others):
                row = at + t * size
                for s in range(size):
                    flat.matrix[row + s] -= least[s]
            for s in range(size):
                flat.cost[start + s] += least[s]


@part
def _add(e: int, is_first: bool, flat: Flat, share: Array, size: int) -> None:
    """Add to pair `e` a cost of each choice of its first node, or of its second."""
    at = flat.pair_at[e]
    others = (flat.pair_at[e + 1] - at) // size
    if is_first:
        for s in range(size):
            for t in range(others):
                flat.matrix[at + s * others + t] += share[s]
    else:
        for t in range(others):
            for s in range(size):
                flat.matrix[at + t * size + s] += share[s]


@part
def _push(i: int, forward: bool, flat: Flat, share: Array) -> None:
    """Spread the cost of node `i` over its pairs with the nodes that come after it."""
    start = flat.node_at[i]
    size = flat.node_at[i + 1] - start
    first, last = flat.around_at[i], flat.around_at[i + 1]
    ahead = 0
    for k in range(first, last):
        if (flat.u[flat.around[k]] == i) == forward:
            ahead += 1
    if ahead == 0:
        return
    parts = max(ahead, last - first - ahead)
    for s in range(size):
        share[s] = flat.cost[start + s] / parts
    for k in range(first, last):
        e = flat.around[k]
        if (flat.u[e] == i) != forward:
            continue
        _add(e, forward, flat, share, size)
    for s in range(size):
        flat.cost[start + s] -= share[s] * ahead


@kernel
def sweep(forward: bool, flat: Flat, scratch: Array) -> None:
    """Pull and push at each node, forward or backward.

    Args:
        forward: From the first node to the last, costs to later nodes; else the other way.
        flat: Finite costs; changed.
        scratch: As long as a node has choices at most.
    """
    count = len(flat.node_at) - 1
    for k in range(count):
        i = k if forward else count - 1 - k
        _pull(i, flat, scratch)
        _push(i, forward, flat, scratch)


@kernel
def pull_all(flat: Flat, scratch: Array) -> None:
    """Move to each node, in order, what its pairs cost at least."""
    for i in range(len(flat.node_at) - 1):
        _pull(i, flat, scratch)


@kernel
def sum_of_minima(flat: Flat) -> float:
    """Of all nodes and pairs."""
    nodes, pairs = 0.0, 0.0
    for i in range(len(flat.node_at) - 1):
        nodes += flat.cost[flat.node_at[i] : flat.node_at[i + 1]].min()
    for e in range(len(flat.u)):
        pairs += flat.matrix[flat.pair_at[e] : flat.pair_at[e + 1]].min()
    return nodes + pairs


@kernel
def decode(flat: Flat, scratch: Array, choice: Array) -> None:
    """Choices in order, each the best given the ones before; written to `choice`."""
    for i in range(len(flat.node_at) - 1):
        cost_before(i, flat, choice, scratch)
        size = flat.node_at[i + 1] - flat.node_at[i]
        choice[i] = np.argmin(scratch[:size])


@kernel
def excess_of_choices(flat: Flat, excess: Array) -> None:
    """By how much each choice lifts the sum of minima; written to `excess`, like `flat.cost`."""
    for i in range(len(flat.node_at) - 1):
        start = flat.node_at[i]
        size = flat.node_at[i + 1] - start
        low = flat.cost[start : start + size].min()
        for s in range(size):
            excess[start + s] = flat.cost[start + s] - low
        for k in range(flat.around_at[i], flat.around_at[i + 1]):
            e = flat.around[k]
            at, end = flat.pair_at[e], flat.pair_at[e + 1]
            others = (end - at) // size
            low = flat.matrix[at:end].min()
            for s in range(size):
                least = np.inf
                if flat.u[e] == i:
                    least = flat.matrix[at + s * others : at + (s + 1) * others].min()
                else:
                    for t in range(others):
                        least = min(least, flat.matrix[at + t * size + s])
                excess[start + s] += least - low
