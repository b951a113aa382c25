"""What the messages prove: a lower bound in exact arithmetic, and choices that cannot be better."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from meshwise.assignment.bounds.messages import Messages, collect, pass_on
from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import INF, least_in
from meshwise.kernels.arrays import Bools, Floats, Ints
from meshwise.kernels.compiler import FORWARD, ONE, kernel, light_kernel

# Integers of this size leave room for a sum of some terms.
_BITS = 58
# Binary digits behind the point, of costs and of prices, at most.
_FINEST, _FINEST_PRICES = 20, 50
# Digits of usage that are multiplied apart, so that products may have more than 64.
_APART = 16


@light_kernel
def _raise_bounds(net: Network, held: Messages, above: Floats) -> None:
    """Note, in a forward sweep, by how much each choice raises the bound at least."""
    for i in range(net.size.size):
        collect(FORWARD, i, net, held)
        low, high = net.first_choice[i], net.first_choice[i + 1]
        least = least_in(held.node, low, high)
        for s in range(low, high):
            rise = held.node[s] - least
            above[s] = rise if rise > above[s] else above[s]
        pass_on(FORWARD, i, net, held)


def rises(network: Network, held: Messages) -> Floats:
    """Return by how much each choice raises the bound at least; moves the messages forward."""
    above = np.zeros(len(network.cost))
    _raise_bounds(network, held, above)
    return above


def choices_within(
    network: Network,
    held: Messages,
    prices: Floats,
    bound: float,
    cost: float,
    *,
    step: float = 1.0,
) -> Bools:
    """Return choices that could be part of a cheaper solution than one known.

    Args:
        network: The problem.
        held: Messages after a backward sweep at these prices.
        prices: Price of a byte in each row.
        bound: Lower bound that they prove.
        cost: Cost of the solution known.
        step: A better solution is cheaper by so much at least: 1 where costs are whole.
    """
    above = rises(network, held)
    # The bound is a difference of sums of this size, each rounded.
    slack = 1e-9 * (abs(cost) + float(prices @ network.capacity))
    return bound + above <= cost - step + slack


def dearest(network: Network) -> float:
    """Return a cost that no choice of finite cost exceeds."""
    total = network.constant
    for values, first in (
        (network.cost, network.first_choice),
        (network.matrices, network.first_entry),
    ):
        finite = np.where(np.isfinite(values), values, 0.0)
        if len(first) > 1:
            total += float(np.maximum.reduceat(finite, first[:-1]).sum())
    return total


class IntegerMessages(NamedTuple):
    """Messages in whole units of a small part of a cost.

    Attributes:
        node: Value of each choice that lies at its node.
        at_u: Value that each edge holds for the choices of its earlier node.
        at_v: The same for its later node.
    """

    node: Ints
    at_u: Ints
    at_v: Ints


@kernel
def _integer_minima(net: Network, held: IntegerMessages, scale: float) -> tuple[Ints, Ints]:
    """Return least value of each node, and of each edge."""
    node, at_u, at_v = held.node, held.at_u, held.at_v
    nodes, edges = np.zeros(net.size.size, np.int64), np.zeros(net.u.size, np.int64)
    for i in range(net.size.size):
        nodes[i] = least_in(node, net.first_choice[i], net.first_choice[i + 1])
    for e in range(net.u.size):
        width = int(net.size[net.v[e]])
        least = np.int64(2**62)
        for s in range(net.size[net.u[e]]):
            for t in range(width):
                entry = float(net.matrices[net.first_entry[e] + s * width + t])
                if entry < INF:
                    value = (
                        np.int64(entry * scale)
                        + at_u[net.first_u[e] + s]
                        + at_v[net.first_v[e] + t]
                    )
                    least = value if value < least else least
        edges[e] = least
    return nodes, edges


@kernel
def _priced(net: Network, until: Ints, finer: int, apart: int, held: IntegerMessages) -> None:
    """Add prices of memory, finer by so many digits, to integer costs; take out what edges hold."""
    node, at_u, at_v = held.node, held.at_u, held.at_v
    rest = (ONE << apart) - ONE
    for i in range(net.size.size):
        for k in range(net.first_item[i], net.first_item[i + 1]):
            price = until[net.item_high[k]] - until[net.item_low[k]]
            for s in range(net.size[i]):
                used = net.usage[net.first_usage[k] + s]
                worth = price * (used >> apart) + ((price * (used & rest)) >> apart)
                node[net.first_choice[i] + s] += worth >> (finer - apart)
    for e in range(net.u.size):
        for s in range(net.size[net.u[e]]):
            node[net.first_choice[net.u[e]] + s] -= at_u[net.first_u[e] + s]
        for t in range(net.size[net.v[e]]):
            node[net.first_choice[net.v[e]] + t] -= at_v[net.first_v[e] + t]


def exact_bound(network: Network, held: Messages, prices: Floats) -> int | None:
    """Return the lower bound of rounded messages and prices, computed in integers.

    Any messages and any prices of at least 0 prove a bound, so rounding costs a little of it and
    no truth.

    Args:
        network: The problem, with whole finite costs below 2^53.
        held: Messages at any prices.
        prices: Price of a byte in each row.

    Returns:
        The bound, rounded up to a whole number as costs are; None where 64 bits would not do, or
        where prices have risen beyond all numbers because nothing fits.
    """
    if not (np.isfinite(prices).all() and np.isfinite(held.node).all()):
        return None
    # A byte has a price of a small part of one; costs need no digits that fine.
    worth = float(prices.sum()) * max(float(network.usage.max(initial=0)), 1.0)
    most = max(_largest(network, held), 4 * worth, 1.0)
    if not math.isfinite(most):
        return None
    digits = min(_FINEST, math.floor(_BITS - math.log2(most)))
    if digits < 0:
        return None
    scale = 2.0**digits
    apart, finer = _APART, _digits_of_prices(prices, worth, _APART) - digits
    if finer < apart:
        apart, finer = 0, max(_digits_of_prices(prices, worth, 0) - digits, 0)
    fine = np.floor(prices * 2.0 ** (digits + finer)).astype(np.int64)
    until = np.concatenate([[0], np.cumsum(fine)])
    whole = IntegerMessages(
        (network.cost * scale).astype(np.int64),
        np.round(held.at_u * scale).astype(np.int64),
        np.round(held.at_v * scale).astype(np.int64),
    )
    _priced(network, until, finer, apart, whole)
    nodes, edges = _integer_minima(network, whole, scale)
    total = sum(nodes.tolist()) + sum(edges.tolist()) + (int(network.constant) << digits)
    held_back = sum(p * c for p, c in zip(fine.tolist(), network.capacity.tolist(), strict=True))
    return -((held_back - (total << finer)) >> (digits + finer))


def _digits_of_prices(prices: Floats, worth: float, apart: int) -> int:
    """Return the digits that leave room for the products with usage and its digits apart."""
    of_usage = _BITS + apart - math.log2(max(4 * worth, 1.0))
    of_rest = _BITS - apart - math.log2(max(4 * float(prices.sum()), 1.0))
    return min(_FINEST_PRICES, math.floor(min(of_usage, of_rest)))


def _largest(network: Network, held: Messages) -> float:
    """Return what no sum of a node's cost and its messages, nor of a pair's, exceeds."""
    load = np.zeros(len(network.size))
    apart = 0.0
    for ends, first, values in (
        (network.u, network.first_u, held.at_u),
        (network.v, network.first_v, held.at_v),
    ):
        if len(ends):
            largest = np.maximum.reduceat(np.abs(values), first)
            np.add.at(load, ends, largest)
            apart += float(largest.max())
    finite = network.matrices[np.isfinite(network.matrices)]
    of_pairs = float(np.abs(finite).max(initial=0.0)) + apart
    return max(
        float(np.abs(network.cost).max(initial=0.0)) + float(load.max(initial=0.0)), of_pairs
    )
