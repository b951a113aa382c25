"""An order of the nodes in which few have both earlier and later neighbours at any time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.network import Network, network_without_rows, starts

Integers = NDArray[np.int64]


def narrow_order(network: Network) -> Integers:
    """Return nodes in such an order, by always taking the one that leaves the smallest frontier.

    A frontier's size is the number of choices that its nodes have together.
    """
    count = len(network.size)
    beside = [set[int]() for _ in range(count)]
    ends: list[tuple[int, int]] = list(zip(network.u.tolist(), network.v.tolist(), strict=True))
    for u, v in ends:
        beside[u].add(v)
        beside[v].add(u)
    weight: list[float] = np.log(network.size).tolist()
    open_neighbours = [len(b) for b in beside]
    front: set[int] = set()
    left = set(range(count))
    order: list[int] = []
    while left:
        near: set[int] = set()
        for i in front:
            near |= beside[i] & left
        best = min(
            near or left,
            key=lambda i: (_growth(i, beside, open_neighbours, weight, front), i),
        )
        left.remove(best)
        order.append(best)
        for j in beside[best]:
            open_neighbours[j] -= 1
            if j in front and not open_neighbours[j]:
                front.remove(j)
        if open_neighbours[best]:
            front.add(best)
    return np.array(order, np.int64)


def _growth(
    i: int, beside: list[set[int]], open_neighbours: list[int], weight: list[float], front: set[int]
) -> float:
    """Return what a node adds to the frontier, less what its neighbours leave it with."""
    more = weight[i] if open_neighbours[i] else 0.0
    return more - sum(weight[j] for j in beside[i] if j in front and open_neighbours[j] == 1)


def in_order(network: Network, order: Integers) -> Network:
    """Return the same network with its nodes in another order."""
    count = len(network.size)
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    size = network.size[order]
    at_u, at_v = place[network.u], place[network.v]
    low, high = np.minimum(at_u, at_v), np.maximum(at_u, at_v)
    edges = np.lexsort((high, low))
    matrices = [_matrix(network, e, flip=bool(at_u[e] > at_v[e])) for e in edges.tolist()]
    low, high = low[edges], high[edges]
    costs = [_span(network.cost, network.first_choice, i) for i in order.tolist()]
    items = [k for i in order.tolist() for k in range(*network.first_item[i : i + 2].tolist())]
    owner = np.repeat(np.arange(count), np.diff(network.first_item))[items]
    lengths = network.size[owner]
    first = network.first_usage[items]
    usage = [
        network.usage[f : f + n] for f, n in zip(first.tolist(), lengths.tolist(), strict=True)
    ]
    reordered = network_without_rows(
        size,
        np.concatenate(costs) if costs else network.cost,
        low,
        high,
        np.concatenate(matrices) if matrices else network.matrices,
    )
    return reordered._replace(
        item_low=network.item_low[items],
        item_high=network.item_high[items],
        first_item=starts(np.diff(network.first_item)[order]),
        first_usage=starts(lengths)[:-1],
        usage=np.concatenate(usage) if usage else network.usage,
        capacity=network.capacity,
        constant=network.constant,
    )


def _span(values: NDArray[np.float64], first: Integers, i: int) -> NDArray[np.float64]:
    return values[first[i] : first[i + 1]]


def _matrix(network: Network, e: int, *, flip: bool) -> NDArray[np.float64]:
    rows = int(network.size[network.u[e]])
    matrix = _span(network.matrices, network.first_entry, e).reshape(rows, -1)
    return (matrix.T if flip else matrix).ravel()
