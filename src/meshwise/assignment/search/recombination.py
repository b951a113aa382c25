"""The best choice that several solutions make up together.

Each node keeps what one of the solutions gave it.  Where they agree nothing is left to decide, so
the reductions leave a small problem, on which the bound and the search do well.

Source: tour merging (W. Cook, P. Seymour, INFORMS J. Computing 2003) and fusion moves (V. Lempitsky
et al., PAMI 2010).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwise.assignment.bounds.ascent import Ascent
from meshwise.assignment.bounds.messages import cost_of, room_left
from meshwise.assignment.network import Network
from meshwise.assignment.reductions.reduction import reduce_network
from meshwise.assignment.run_state import TRY_ENTRIES
from meshwise.assignment.search.component import scratch_for
from meshwise.assignment.search.neighbourhood import Tries, improve
from meshwise.assignment.search.room import Placed, room_of
from meshwise.kernels.arrays import Flag, Floats, Ints

_ROUNDS = 60
_TRIES_A_NODE = 2


def recombined(
    network: Network,
    choices: Sequence[Ints],
    prices: Floats,
    rng: np.random.Generator,
    stop: Flag,
) -> tuple[Ints | None, float]:
    """Return a choice in which each node takes what one of several choices gave it.

    Args:
        network: The problem.
        choices: Choices within all rows, the best one first.
        prices: Price of a byte in each row.
        rng: Random numbers.
        stop: Ends the search when another thread sets it to 1.

    Returns:
        A choice within all rows, or None where none was found; and the entries of matrices that
        were looked at.
    """
    keep = np.zeros(len(network.cost), np.bool_)
    for choice in choices:
        keep[network.first_choice[:-1] + choice] = True
    reduction = reduce_network(network, keep, stop)
    small, entries = reduction.network, float(len(network.matrices))
    if stop[0] or reduction.infeasible:
        return None, entries
    if not len(small.size):
        return reduction.expand(np.zeros(0, np.int64)), entries
    ascent = Ascent.of(small, stop)
    ascent.best_prices[:] = prices[reduction.rows]
    ascent.restart()
    ascent.run(_ROUNDS)
    entries += _ROUNDS * ascent.entries_a_round
    best = _cheapest(small, ascent, reduction.restrict(choices[0]))
    if best is None or stop[0]:
        return None, entries
    work = scratch_for(small, stop)
    work.price[1:] = np.cumsum(ascent.best_prices)
    tries = _TRIES_A_NODE * len(small.size)
    placed = Placed(best, room_of(room_left(small, best)))
    improve(Tries(tries), small, placed, work, rng)
    return reduction.expand(best), entries + tries * TRY_ENTRIES


def _cheapest(network: Network, ascent: Ascent, known: Ints | None) -> Ints | None:
    """Return the better one of what the prices found and what was known; None for neither."""
    if known is not None and cost_of(network, known) <= ascent.cost:
        return known
    return ascent.choice if np.isfinite(ascent.cost) else None
