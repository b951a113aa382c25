"""Bounds at several prices of memory.

A choice that is too dear at any prices of memory is in no better solution, so a few prices around
the best ones take out more than the best ones alone: each gives a line of the bound as a function
of the bytes that are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.bounds.exact_bound import choices_within
from meshwise.assignment.bounds.messages import Messages, add_prices, copied, no_messages, sweep
from meshwise.assignment.network import Network
from meshwise.assignment.proof.frontier import Bounds
from meshwise.kernels.arrays import Floats

Integers = NDArray[np.int64]

# Prices of memory that bounds are computed at, relative to the best ones, and which of them before
# each is near.
_FACTORS = ((1.0, None), (0.95, 0), (1.05, 0), (0.8, 1), (1.25, 2), (0.5, 3), (2.0, 4))
# Sweeps at each, until one closes less than this part of the gap to the target.
_SWEEPS, _SETTLED = 40, 1e-3
# Prices are scaled in so many steps, the first by this factor, with so many sweeps each.
_SCALINGS, _SCALE, _SCALING_SWEEPS = 14, 4.0, 3
# Prices are centred at most so often.
_CENTRED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLineEffort:
    """What ends a proof.

    Attributes:
        stop: Flag of one number that another thread may set to 1.
        left: Entries of matrices that may still be looked at.
    """

    stop: NDArray[np.int8]
    left: Integers

    @property
    def is_over(self) -> bool:
        """Return whether the proof has to end."""
        return bool(self.stop[0]) or self.left[0] <= 0

    def sweep_both_ways(self, network: Network, held: Messages) -> float:
        """Sweep forward and backward; return the bound, without what is not in the messages."""
        self.left[0] -= 2 * len(network.matrices) + len(network.cost)
        sweep(True, network, held)
        return sweep(False, network, held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Converged messages at some prices.

    Attributes:
        prices: Price of a byte in each row.
        held: The messages, after a backward sweep.
        bound: Lower bound that they prove.
    """

    prices: Floats
    held: Messages
    bound: float


def lines_at(
    network: Network, prices: Floats, target: float, effort: PriceLineEffort
) -> list[Line]:
    """Return lines around these prices, those first; none where the messages prove nothing.

    That is so where choices are left that some neighbour forbids altogether: a reduction that was
    cut short leaves them.
    """
    lines: list[Line] = []
    for factor, near in _FACTORS if prices.any() else _FACTORS[:1]:
        scaled = prices * factor
        if near is None:
            held = no_messages(network, effort.stop)
            add_prices(scaled, network, held)
        else:
            # Messages at prices nearby have nearly converged.
            held = copied(lines[near].held)
            add_prices(scaled - lines[near].prices, network, held)
        besides = network.constant - float(scaled @ network.capacity)
        bound = before = -math.inf
        for _ in range(_SWEEPS):
            bound = effort.sweep_both_ways(network, held) + besides
            if bound - before <= _SETTLED * abs(target - bound):
                break
            before = bound
        if not math.isfinite(bound):
            return []
        lines.append(Line(prices=scaled, held=held, bound=bound))
    return lines


def scaled_prices(network: Network, prices: Floats, effort: PriceLineEffort) -> Floats:
    """Return the prices times the number with the best bound: it is concave along a ray."""
    if not prices.any():
        return prices
    held = no_messages(network, effort.stop)
    present = 0.0

    def bound_at(scale: float) -> float:
        nonlocal present
        add_prices((scale - present) * prices, network, held)
        present, bound = scale, 0.0
        for _ in range(_SCALING_SWEEPS):
            bound = effort.sweep_both_ways(network, held)
        return bound - scale * float(prices @ network.capacity)

    best, factor = 1.0, _SCALE
    most = bound_at(best)
    for _ in range(_SCALINGS):
        for scale in (best * factor, best / factor):
            bound = bound_at(scale)
            if bound > most:
                best, most = scale, bound
                break
        else:
            factor = math.sqrt(factor)
    return best * prices


def centred_lines(
    network: Network, prices: Floats, target: float, effort: PriceLineEffort
) -> list[Line]:
    """Return lines around good prices: those of the best line, until it is in the middle."""
    lines = lines_at(network, prices, target, effort)
    for _ in range(_CENTRED):
        best = max(lines, key=lambda line: line.bound, default=None)
        if best is None or best is lines[0]:
            break
        lines = lines_at(network, best.prices, target, effort)
    return lines


def kept_by(network: Network, lines: list[Line], target: float) -> NDArray[np.bool_]:
    """Return choices that no line proves too dear."""
    keep = np.ones(len(network.cost), np.bool_)
    for line in lines:
        keep &= choices_within(network, line.held, line.prices, line.bound, target)
        # Back to where the bound is that of the line.
        sweep(False, network, line.held)
    return keep


def slack_of(network: Network, prices: Floats, cost: float) -> float:
    """Return what rounding adds up to at most, as in `bound.choices_within`."""
    return 1e-9 * (abs(cost) + float(prices @ network.capacity))


def bounds_of(network: Network, lines: list[Line], target: float, stop: NDArray[np.int8]) -> Bounds:
    """Return what the lines prove of choices cheaper than the target, the best line first."""
    lines = sorted(lines, key=lambda line: -line.bound)
    besides = [network.constant - float(line.prices @ network.capacity) for line in lines]
    return Bounds(
        node=np.array([line.held.node for line in lines]),
        at_u=np.array([line.held.at_u for line in lines]),
        at_v=np.array([line.held.at_v for line in lines]),
        base=np.array(besides),
        most=np.array([target - 1 + slack_of(network, line.prices, target) for line in lines]),
        stop=stop,
    )
