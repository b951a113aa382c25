"""What the messages prove: a lower bound in exact arithmetic, and choices that cannot be better."""

# pyright: basic
# Kernels: Numba checks their types when it compiles them.
from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwise.intra.solver.compiled import FORWARD, kernel
from meshwise.intra.solver.messages import Messages, collect, pass_on
from meshwise.intra.solver.network import Network
from meshwise.intra.solver.reducing import INF, least_in

# Integers of this size leave room for a sum of some terms.
_BITS = 58
_FINEST = 2.0**20


@kernel
def _raise_bounds(net: Network, held: Messages, above: np.ndarray) -> None:
    """Note, in a forward sweep, by how much each choice raises the bound at least."""
    for i in range(net.size.size):
        collect(FORWARD, i, net, held)
        low, high = net.first_choice[i], net.first_choice[i + 1]
        least = least_in(held.node, low, high)
        for s in range(low, high):
            rise = held.node[s] - least
            above[s] = rise if rise > above[s] else above[s]
        pass_on(FORWARD, i, net, held)


def rises(network: Network, held: Messages) -> NDArray[np.float64]:
    """By how much each choice raises the bound at least; moves the messages forward."""
    above = np.zeros(len(network.cost))
    _raise_bounds(network, held, above)
    return above


def choices_within(
    network: Network, held: Messages, prices: NDArray[np.float64], bound: float, cost: float
) -> NDArray[np.bool_]:
    """Choices that could be part of a cheaper solution than one known.

    Args:
        network: The problem.
        held: Messages after a backward sweep at these prices.
        prices: Of a byte in each row.
        bound: Lower bound that they prove.
        cost: Cost of the solution known.
    """
    above = rises(network, held)
    # Whole costs: a better solution is cheaper by one at least.  The bound is a difference of sums
    # of this size, each rounded.
    slack = 1e-9 * (abs(cost) + float(prices @ network.capacity))
    return bound + above <= cost - 1 + slack


def dearest(network: Network) -> float:
    """No choice of finite cost costs more."""
    total = network.constant
    for values, first in (
        (network.cost, network.first_choice),
        (network.matrices, network.first_entry),
    ):
        finite = np.where(np.isfinite(values), values, 0.0)
        if len(first) > 1:
            total += float(np.maximum.reduceat(finite, first[:-1]).sum())
    return total


@kernel
def _integer_minima(
    net: Network, node: np.ndarray, at_u: np.ndarray, at_v: np.ndarray, scale: float,
    nodes: np.ndarray, edges: np.ndarray,
) -> None:  # fmt: skip
    for i in range(net.size.size):
        nodes[i] = least_in(node, net.first_choice[i], net.first_choice[i + 1])
    for e in range(net.u.size):
        width = net.size[net.v[e]]
        least = np.int64(2**62)
        for s in range(net.size[net.u[e]]):
            for t in range(width):
                entry = net.matrices[net.first_entry[e] + s * width + t]
                if entry < INF:
                    value = (
                        np.int64(entry * scale)
                        + at_u[net.first_u[e] + s]
                        + at_v[net.first_v[e] + t]
                    )
                    least = value if value < least else least
        edges[e] = least


@kernel
def _priced(
    net: Network, until: np.ndarray, at_u: np.ndarray, at_v: np.ndarray, node: np.ndarray
) -> None:
    """Add prices of memory to integer costs and take out what the edges hold."""
    for i in range(net.size.size):
        for k in range(net.first_item[i], net.first_item[i + 1]):
            price = until[net.item_high[k]] - until[net.item_low[k]]
            for s in range(net.size[i]):
                node[net.first_choice[i] + s] += price * net.usage[net.first_usage[k] + s]
    for e in range(net.u.size):
        for s in range(net.size[net.u[e]]):
            node[net.first_choice[net.u[e]] + s] -= at_u[net.first_u[e] + s]
        for t in range(net.size[net.v[e]]):
            node[net.first_choice[net.v[e]] + t] -= at_v[net.first_v[e] + t]


def exact_bound(network: Network, held: Messages, prices: NDArray[np.float64]) -> int | None:
    """The lower bound of rounded messages and prices, computed in integers.

    Any messages and any prices of at least 0 prove a bound, so rounding costs a little of it and
    no truth.

    Args:
        network: The problem, with whole finite costs below 2^53.
        held: Messages at any prices.
        prices: Of a byte in each row.

    Returns:
        The bound, rounded up to a whole number as costs are; None where 64 bits would not do, or
        where prices have risen beyond all numbers because nothing fits.
    """
    if not (np.isfinite(prices).all() and np.isfinite(held.node).all()):
        return None
    finite = network.matrices[np.isfinite(network.matrices)]
    largest = max(
        float(np.abs(values).max()) if len(values) else 1.0
        for values in (network.cost, finite, held.at_u, held.at_v)
    )
    usage = float(network.usage.max()) if len(network.usage) else 0.0
    worth = float(prices.sum()) * usage
    degree = 1 + int(
        np.bincount(np.concatenate([network.u, network.v]), minlength=1).max(initial=0)
    )
    most = max(largest * degree, worth * 4, 1.0)
    if not math.isfinite(most):
        return None
    scale = min(_FINEST, 2.0 ** math.floor(_BITS - math.log2(most)))
    if scale < 1.0:
        return None
    fine = np.floor(prices * scale).astype(np.int64)
    until = np.concatenate([[0], np.cumsum(fine)])
    at_u, at_v = (np.round(a * scale).astype(np.int64) for a in (held.at_u, held.at_v))
    node = (network.cost * scale).astype(np.int64)
    _priced(network, until, at_u, at_v, node)
    nodes = np.zeros(len(network.size), np.int64)
    edges = np.zeros(len(network.u), np.int64)
    _integer_minima(network, node, at_u, at_v, scale, nodes, edges)
    total = sum(nodes.tolist()) + sum(edges.tolist()) + int(network.constant) * int(scale)
    total -= sum(p * c for p, c in zip(fine.tolist(), network.capacity.tolist(), strict=True))
    return -(-total // int(scale))
