"""Proves the best choice of a small network with few memory rows, or finds it.

A solution that costs less than a target has few choices to take: those that the messages prove too
dear, at any of some prices of memory, go, then those that a trial proves too dear (`probing`), and
what the reductions leave is searched with labels (`labels`).  Targets rise from the bound to the
cost that is known, in steps that double, so that a cost known that is far from the best does no
harm: the first target below which there is a solution ends the search,
and the others are each a lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.intra.solver.bound import choices_within, dearest, rises
from meshwise.intra.solver.labels import FOUND, GAVE_UP, NOTHING, Bounds, find_labels
from meshwise.intra.solver.messages import Messages, add_prices, no_messages, sweep
from meshwise.intra.solver.network import Network
from meshwise.intra.solver.ordering import in_order, narrow_order
from meshwise.intra.solver.probing import probe
from meshwise.intra.solver.reduction import Reduction, reduce_network

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Larger networks, or such with more rows, are not tried; labels count choices in 16 bits.
_MOST_CHOICES = 2**15 - 1
_MOST_NODES, _MOST_ROWS, _MOST_ENTRIES = 2000, 8, 400_000
# Entries of matrices that may be looked at, and how many a label is worth.
_WORK = 1_500_000_000
_LABEL_WORK = 40
_ROOM = 1 << 17
# Prices of memory that bounds are computed at, relative to the best ones.
_FACTORS = (1.0, 0.95, 1.05, 0.8, 1.25, 0.5, 2.0)
# Sweeps at each, until one closes less than this part of the gap to the target.
_SWEEPS, _SETTLED = 40, 1e-3
# The first target, as a share of the gap, or of the bound where less.
_FIRST_SHARE, _FIRST_OF_BOUND = 1 / 16, 1e-3
# After so many targets that were given up, each half as far from the last bound, nothing helps.
_MOST_FAILURES = 3
# Prices are scaled in so many steps, the first by this factor, with so many sweeps each.
_SCALINGS, _SCALE, _SCALING_SWEEPS = 14, 4.0, 3
# Prices are centred at most so often.
_CENTRED = 4
# Choices are taken out again while each time takes out this part of them.
_WORTH = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was proved.

    Attributes:
        choice: One that is cheaper than what was known, the best there is; None for none.
        bound: No choice costs less.
        is_proved: Whether nothing else is better; without a choice, than what was known.
    """

    choice: NDArray[np.int64] | None
    bound: float
    is_proved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Converged messages at some prices."""

    prices: Floats
    held: Messages
    bound: float


def is_provable(network: Network) -> bool:
    """Whether it is worth a try."""
    return (
        len(network.size) <= _MOST_NODES
        and len(network.capacity) <= _MOST_ROWS
        and len(network.matrices) <= _MOST_ENTRIES
        and int(network.size.max(initial=0)) <= _MOST_CHOICES
    )


def prove(
    network: Network,
    prices: Floats,
    cost: float,
    *,
    stop: NDArray[np.int8],
    work: int = _WORK,
) -> Proof:
    """Find the best choice, or prove that none costs less than what is known.

    Args:
        network: A small one that the reductions left.
        prices: Good ones, of a byte in each row.
        cost: Of the best choice known; infinite if there is none.
        stop: Ends the search when another thread sets it to 1.
        work: Entries of matrices that may be looked at.
    """
    left = np.array([work], np.int64)
    known = cost if math.isfinite(cost) else dearest(network) + 1
    order = narrow_order(network)
    placed = in_order(network, order)
    prices = _scaled(placed, prices, stop, left)
    lines = _centred(placed, prices, known, stop, left)
    bound = max(line.bound for line in lines)
    if not math.isfinite(bound):
        return Proof(choice=None, bound=-math.inf, is_proved=False)
    below, num_failed = bound, 0
    step = max(min(_FIRST_SHARE * (known - bound), _FIRST_OF_BOUND * abs(bound)), 1.0)
    proved = -math.inf
    while not stop[0]:
        target = min(float(math.ceil(below + step)), known)
        says, found = _below(placed, lines, target, stop, left)
        if says == GAVE_UP:
            num_failed += 1
            if num_failed > _MOST_FAILURES or left[0] <= 0:
                break
            step /= 4
        elif found is not None:
            return Proof(choice=_back(order, found), bound=proved, is_proved=True)
        elif target >= known:
            return Proof(choice=None, bound=known, is_proved=True)
        else:
            below = proved = target
            step *= 2 if not num_failed else 1
    return Proof(choice=None, bound=proved, is_proved=False)


def _scaled(network: Network, prices: Floats, stop: NDArray[np.int8], left: Integers) -> Floats:
    """The prices times the number with the best bound: it is concave along a ray."""
    if not prices.any():
        return prices
    held = no_messages(network, stop)
    present = 0.0

    def bound_at(scale: float) -> float:
        nonlocal present
        add_prices((scale - present) * prices, network, held)
        present, bound = scale, 0.0
        for _ in range(_SCALING_SWEEPS):
            sweep(True, network, held)
            bound = sweep(False, network, held)
            left[0] -= 2 * len(network.matrices) + len(network.cost)
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


def _centred(
    network: Network, prices: Floats, target: float, stop: NDArray[np.int8], left: Integers
) -> list[_Line]:
    """Lines around good prices: those of the best line, until it is in the middle."""
    lines = _lines(network, prices, target, stop, left)
    for _ in range(_CENTRED):
        best = max(lines, key=lambda line: line.bound)
        if best is lines[0]:
            break
        lines = _lines(network, best.prices, target, stop, left)
    return lines


def _slack(network: Network, prices: Floats, cost: float) -> float:
    """What rounding adds up to at most, as in `bound.choices_within`."""
    return 1e-9 * (abs(cost) + float(prices @ network.capacity))


def _back(order: Integers, placed: Integers) -> Integers:
    """A choice of a network in another order, in its own."""
    choice = np.empty(len(order), np.int64)
    choice[order] = placed
    return choice


def _lines(
    network: Network, prices: Floats, target: float, stop: NDArray[np.int8], left: Integers
) -> list[_Line]:
    lines: list[_Line] = []
    for factor in _FACTORS if prices.any() else (1.0,):
        scaled = prices * factor
        held = no_messages(network, stop)
        add_prices(scaled, network, held)
        besides = network.constant - float(scaled @ network.capacity)
        bound = before = -math.inf
        for _ in range(_SWEEPS):
            sweep(True, network, held)
            bound = sweep(False, network, held) + besides
            left[0] -= 2 * len(network.matrices) + len(network.cost)
            if bound - before <= _SETTLED * abs(target - bound):
                break
            before = bound
        lines.append(_Line(prices=scaled, held=held, bound=bound))
    return lines


def _below(
    network: Network,
    lines: list[_Line],
    target: float,
    stop: NDArray[np.int8],
    left: Integers,
) -> tuple[int, Integers | None]:
    """Search below a target only; what `find_labels` says, and the choice."""
    chain: list[Reduction] = []
    prices = lines[0].prices
    is_probed = False
    while len(network.size):
        if stop[0] or left[0] <= 0:
            return GAVE_UP, None
        keep = _kept(network, lines, target)
        is_little = keep.mean() > 1 - _WORTH
        if is_little and is_probed:
            break
        if is_little:
            is_probed = True
            _probe(network, lines, target, left, keep)
        if not np.logical_or.reduceat(keep, network.first_choice[:-1]).all():
            return NOTHING, None
        reduction = reduce_network(network, keep, stop)
        if stop[0]:
            return GAVE_UP, None
        if reduction.infeasible:
            return NOTHING, None
        chain.append(reduction)
        network, prices = reduction.network, prices[reduction.rows]
        lines = _lines(network, prices, target, stop, left)
    says, choice = _search(network, prices, target, stop, left)
    if choice is not None:
        for reduction in reversed(chain):
            choice = reduction.expand(choice)
    return says, choice


def _kept(network: Network, lines: list[_Line], target: float) -> NDArray[np.bool_]:
    """Choices that no line proves too dear."""
    keep = np.ones(len(network.cost), np.bool_)
    for line in lines:
        keep &= choices_within(network, line.held, line.prices, line.bound, target)
        # Back to where the bound is that of the line.
        sweep(False, network, line.held)
    return keep


def _probe(
    network: Network, lines: list[_Line], target: float, left: Integers, keep: NDArray[np.bool_]
) -> None:
    """Take out what trials prove too dear, from the messages with the best bound."""
    line = max(lines, key=lambda line: line.bound)
    above = rises(network, line.held)
    sweep(False, network, line.held)
    besides = network.constant - float(line.prices @ network.capacity)
    most = target - 1 + _slack(network, line.prices, target) - besides
    # Twice the gap lifts whatever has a choice that is not tried above what is asked.
    penalty = 2 * max(target - line.bound, 1.0)
    probe(network, line.held, above, most, penalty, left, keep)


def _search(
    network: Network, prices: Floats, target: float, stop: NDArray[np.int8], left: Integers
) -> tuple[int, Integers | None]:
    """Search what is left with labels."""
    if not len(network.size):
        none = np.zeros(0, np.int64)
        return (FOUND, none) if network.constant < target else (NOTHING, None)
    order = narrow_order(network)
    placed = in_order(network, order)
    lines = sorted(_lines(placed, prices, target, stop, left), key=lambda line: -line.bound)
    besides = [placed.constant - float(line.prices @ placed.capacity) for line in lines]
    bounds = Bounds(
        node=np.array([line.held.node for line in lines]),
        at_u=np.array([line.held.at_u for line in lines]),
        at_v=np.array([line.held.at_v for line in lines]),
        base=np.array(besides),
        most=np.array([target - 1 + _slack(placed, line.prices, target) for line in lines]),
        stop=stop,
    )
    pairs = np.array([left[0] // _LABEL_WORK])
    placed_choice = np.zeros(len(order), np.int64)
    says = find_labels(placed, bounds, target, _ROOM, pairs, placed_choice)
    left[0] = pairs[0] * _LABEL_WORK
    if says != FOUND:
        return says, None
    return FOUND, _back(order, placed_choice)
