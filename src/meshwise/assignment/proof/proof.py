"""Proves the best choice of a small network with few memory rows, or finds it.

A solution that costs less than a target has few choices to take: those that the messages prove too
dear, at any of some prices of memory, go (`lines`), then those that a trial proves too dear
(`probing`), and what the reductions leave is searched with labels (`labels`), few of them at first:
what that finds lowers the target.  Targets rise from the bound to the cost that is known, in steps
that grow, so that a cost known that is far from the best does no harm: the first target below which
there is a solution ends the search, and the others are each a lower bound.  Few labels find
choices that fit, and the search around those finds better ones: the nearer to the best what is
known, the less is left to prove.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwise.assignment.bounds.exact_bound import dearest, rises
from meshwise.assignment.bounds.messages import cost_of, room_left, sweep
from meshwise.assignment.network import Network
from meshwise.assignment.proof.labels import FOUND, GAVE_UP, NOTHING, LabelLimits, find_labels
from meshwise.assignment.proof.order import in_order, narrow_order
from meshwise.assignment.proof.price_lines import (
    Line,
    PriceLineEffort,
    bounds_of,
    centred_lines,
    kept_by,
    lines_at,
    scaled_prices,
    slack_of,
)
from meshwise.assignment.proof.trials import TrialGoal, probe
from meshwise.assignment.reductions.reduction import Reduction, expanded, reduce_network
from meshwise.assignment.search.component import scratch_for
from meshwise.assignment.search.neighbourhood import Tries, improve, tries_for
from meshwise.assignment.search.room import Placed, room_of
from meshwise.kernels.arrays import Bools, Flag, Floats, Ints

# Larger networks, or such with more rows, are not tried; labels count choices in 16 bits.
_MOST_CHOICES = 2**15 - 1
_MOST_NODES, _MOST_ROWS, _MOST_ENTRIES = 2000, 8, 400_000
# Entries of matrices to look at, fewer where time is short, and how many a label is worth.
WORK, BRIEF_WORK = 1_500_000_000, 60_000_000
_LABEL_WORK = 40
# Labels side by side at most, and where few are followed, before which some are left out.
_ROOM = 1 << 17
_BEAMS, _ROOM_OF_BEAM = (100, 1000), 32
# Choices that close at most such a part of the gap are searched by themselves.
_CORES, _BEAM_OF_CORE = (0.1, 0.2), 1000
# Searches around a choice that was found, and tries of each.
_STARTS, _TRIES = 2, 250
# Pairs of a label and a choice for the first target that is given up.
_FIRST_PAIRS = 4_000_000
# The first target, as a share of the gap, or of the bound where less; each is so much further.
_FIRST_SHARE, _FIRST_OF_BOUND, _FASTER = 1 / 16, 1e-3, 4
# A target beyond this share of the gap may as well be what is known.
_LAST_SHARE = 0.5
# After so many targets that were given up, each a quarter as far as the last, nothing helps.
_MOST_FAILURES = 3
# A choice whose rise is less than this part of the gap is not worth a trial.
_HOPE = 0.1
# Choices are taken out again while each time takes out this part of them.
_WORTH = 0.02
# And tried again if there are less than this part of those that were tried before.
_WORTH_PROBING = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result of a proof.

    Attributes:
        choice: The best one met that is cheaper than what was known; None for none.
        bound: No choice costs less.
        is_proved: Whether nothing is better; without a choice, than what was known.
    """

    choice: Ints | None
    bound: float
    is_proved: bool


def is_provable(network: Network) -> bool:
    """Return whether it is worth a try."""
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
    stop: Flag,
    choice: Ints | None = None,
    work: int = WORK,
) -> Proof:
    """Find the best choice, or prove that none costs less than what is known.

    Args:
        network: A small network that the reductions left.
        prices: Good prices of a byte in each row.
        cost: Cost of the best choice known; infinite if there is none.
        stop: Flag of one number; the search ends when another thread sets it to 1.
        choice: A choice that fits, if any is known.
        work: Entries of matrices that may be looked at.

    Returns:
        What is proved.
    """
    effort = PriceLineEffort(stop=stop, left=np.array([work], np.int64))
    known = cost if math.isfinite(cost) else dearest(network) + 1
    order = narrow_order(network)
    placed = in_order(network, order)
    prices = scaled_prices(placed, prices, effort)
    lines = centred_lines(placed, prices, known, effort)
    if not lines:
        return Proof(choice=None, bound=-math.inf, is_proved=False)
    bound = max(line.bound for line in lines)
    # A choice that is nearly the best saves much: all that comes later looks below it only.  But
    # without rows a brief proof from a known choice is sooner done than the search for one.
    first = None if choice is None else choice[order]
    is_brief = work <= BRIEF_WORK and first is not None and not len(network.capacity)
    best = None if is_brief else _good(placed, lines, known, first, effort)
    known = known if best is None else cost_of(placed, best)
    below, proved, num_failed, is_proved = bound, -math.inf, 0, False
    step = max(min(_FIRST_SHARE * (known - bound), _FIRST_OF_BOUND * abs(bound)), 1.0)
    allowed = _FIRST_PAIRS
    while not (is_proved or effort.is_over or num_failed > _MOST_FAILURES):
        target = min(float(math.ceil(below + step)), known)
        if not num_failed and target - below > _LAST_SHARE * (known - below):
            target = known
        says, found = _below(placed, lines, target, allowed, effort)
        if found is not None:
            best, known = found, cost_of(placed, found)
        if says == GAVE_UP:
            num_failed += 1
            allowed *= 4
            step = (target - below) / 4
        elif says == FOUND or target >= known:
            is_proved, proved = True, known
        else:
            below = proved = target
            step *= _FASTER if not num_failed else 1
    found = best if best is None else _back(order, best)
    return Proof(choice=found, bound=proved, is_proved=is_proved)


def _back(order: Ints, placed: Ints) -> Ints:
    """Return a choice of a network in another order, in its own."""
    choice = np.empty(len(order), np.int64)
    choice[order] = placed
    return choice


def _below(
    network: Network, lines: list[Line], target: float, allowed: int, effort: PriceLineEffort
) -> tuple[int, Ints | None]:
    """Search below a target only.

    Args:
        network: The network, in an order with small frontiers.
        lines: Bounds at several prices.
        target: Only choices that cost less are looked for.
        allowed: Pairs of a label and a choice that may be looked at.
        effort: What ends the search.

    Returns:
        What `find_labels` says, and the best choice met, if any.
    """
    chain: list[Reduction] = []
    best: Ints | None = None
    prices = lines[0].prices
    num_probed, beams = math.inf, list(_BEAMS)
    says = NOTHING
    while len(network.size):
        if effort.is_over or not lines:
            return GAVE_UP, best
        keep = kept_by(network, lines, target)
        if keep.mean() > 1 - _WORTH:
            may_probe = len(network.cost) <= _WORTH_PROBING * num_probed
            if beams and (len(beams) == len(_BEAMS) or not may_probe):
                said, choice = _labelled(network, lines, target, beams.pop(0), WORK, effort)
                if said == NOTHING:
                    break
                if choice is not None:
                    choice = _improved(network, prices, choice, effort)
                    best, target = expanded(chain, choice), cost_of(network, choice)
                continue
            if not may_probe:
                says, choice = _search(network, prices, target, allowed, effort)
                best = best if choice is None else expanded(chain, choice)
                break
            num_probed, beams = len(network.cost), list(_BEAMS)
            _probe(network, lines, target, effort, keep)
        reduction = _without(network, keep, effort.stop)
        if effort.is_over:
            return GAVE_UP, best
        if reduction is None:
            break
        chain.append(reduction)
        network, prices = reduction.network, prices[reduction.rows]
        lines = lines_at(network, prices, target, effort)
    if not len(network.size) and network.constant < target:
        best = expanded(chain, np.zeros(0, np.int64))
    if says == NOTHING and best is not None:
        says = FOUND
    return says, best


def _good(
    network: Network,
    lines: list[Line],
    known: float,
    choice: Ints | None,
    effort: PriceLineEffort,
) -> Ints | None:
    """Return a choice that costs less than what is known, and hardly more than the best.

    None for none.
    """
    best: Ints | None = None

    def note(found: Ints | None) -> bool:
        nonlocal best, choice, known
        if found is None or cost_of(network, found) >= known:
            return False
        best, choice, known = found, found, cost_of(network, found)
        return True

    note(_labelled(network, lines, known, _BEAMS[0], WORK, effort)[1])
    note(_within_cores(network, lines, known, effort))
    if choice is not None and note(_improved(network, lines[0].prices, choice, effort)):
        note(_within_cores(network, lines, known, effort))
    return best


def _within_cores(
    network: Network, lines: list[Line], known: float, effort: PriceLineEffort
) -> Ints | None:
    """Return the best choice of those that bounds make hardly dearer, if it is a new best.

    Few choices are left where each may close a part of the gap only, so few labels go far.
    """
    best: Ints | None = None
    bound = max(line.bound for line in lines)
    shares = list(_CORES)
    while shares and not effort.is_over:
        target = bound + shares[0] * (known - bound)
        reduction = _without(network, kept_by(network, lines, target), effort.stop)
        choice = None
        if reduction is not None:
            core, prices = reduction.network, lines[0].prices[reduction.rows]
            choice = _of_core(core, prices, known, effort)
        if choice is None or reduction is None:
            shares.pop(0)
        else:
            best = reduction.expand(choice)
            known = cost_of(network, best)
    return best


def _of_core(core: Network, prices: Floats, known: float, effort: PriceLineEffort) -> Ints | None:
    """Return a choice of a core that is better than what is known, or None."""
    if not len(core.size):
        return np.zeros(0, np.int64) if core.constant < known else None
    order = narrow_order(core)
    placed = in_order(core, order)
    lines = lines_at(placed, prices, known, effort)
    choice = _labelled(placed, lines, known, _BEAM_OF_CORE, WORK, effort)[1] if lines else None
    return None if choice is None else _back(order, choice)


def _improved(network: Network, prices: Floats, choice: Ints, effort: PriceLineEffort) -> Ints:
    """Return the best of some searches around a choice that fits."""
    if not len(network.size):
        return choice
    work = scratch_for(network, effort.stop)
    work.price[1:] = np.cumsum(prices)
    best, least = choice, cost_of(network, choice)
    tries = Tries(tries_for(network, _TRIES))
    for seed in range(_STARTS):
        better, room = choice.copy(), room_of(room_left(network, choice))
        rng = np.random.default_rng(seed)
        improve(tries, network, Placed(better, room), work, rng)
        if (cost := cost_of(network, better)) < least:
            best, least = better, cost
    return best


def _without(network: Network, keep: Bools, stop: Flag) -> Reduction | None:
    """Return what is left with these choices only; None for no solution."""
    if not np.logical_or.reduceat(keep, network.first_choice[:-1]).all():
        return None
    reduction = reduce_network(network, keep, stop)
    return None if reduction.infeasible else reduction


def _probe(
    network: Network,
    lines: list[Line],
    target: float,
    effort: PriceLineEffort,
    keep: Bools,
) -> None:
    """Take out what trials prove too dear, from the messages with the best bound."""
    line = max(lines, key=lambda line: line.bound)
    above = rises(network, line.held)
    sweep(False, network, line.held)
    besides = network.constant - float(line.prices @ network.capacity)
    most = target - 1 + slack_of(network, line.prices, target) - besides
    # Twice the gap lifts whatever has a choice that is not tried above what is asked.
    gap = max(target - line.bound, 1.0)
    goal = TrialGoal(most, 2 * gap, _HOPE * gap)
    probe(network, line.held, above, goal, effort.left, keep)


def _search(
    network: Network, prices: Floats, target: float, allowed: int, effort: PriceLineEffort
) -> tuple[int, Ints | None]:
    """Search what is left with labels, in an order of its own."""
    order = narrow_order(network)
    placed = in_order(network, order)
    lines = lines_at(placed, prices, target, effort)
    if not lines:
        return GAVE_UP, None
    says, choice = _labelled(placed, lines, target, _ROOM, allowed, effort)
    return says, choice if choice is None else _back(order, choice)


def _labelled(
    network: Network,
    lines: list[Line],
    target: float,
    beam: int,
    allowed: int,
    effort: PriceLineEffort,
) -> tuple[int, Ints | None]:
    """Search with labels; what `find_labels` says, and the choice."""
    bounds = bounds_of(network, lines, target, effort.stop)
    pairs = np.array([min(effort.left[0] // _LABEL_WORK, allowed)], np.int64)
    before = int(pairs[0])
    choice = np.zeros(len(network.size), np.int64)
    room = min(_ROOM, _ROOM_OF_BEAM * beam)
    limits = LabelLimits(float(target), room, beam)
    says = find_labels(network, bounds, limits, pairs, choice)
    effort.left[0] -= (before - int(pairs[0])) * _LABEL_WORK
    return says, choice if says == FOUND else None
