"""Prices of memory: a rising lower bound, and choices that fit.

Each row of memory has a price per byte.  With prices in the nodes' costs the rows may be ignored,
and what the choices then cost less what the capacity is worth is a lower bound; the prices follow
its subgradient, the bytes that the choices take beyond the capacity.  The messages never begin
anew: one sweep after a small change of prices is nearly converged.

What a node takes is averaged over its choices, the cheap ones weighing most: between two good
choices the prices would otherwise jump to and fro.

Source: Lagrangian relaxation with Polyak's step, a smoothed dual function (Y. Nesterov, Math.
Programming 2005) and an exponential average of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meshwise.assignment.bounds.messages import (
    Messages,
    add_prices,
    collect,
    cost_of,
    follow,
    follow_within,
    no_messages,
    pass_on,
    room_left,
    sweep,
)
from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import INF, least_in
from meshwise.kernels.arrays import Flag, Floats, Ints
from meshwise.kernels.compiler import BACKWARD, FORWARD, ONE, kernel, part

_FIRST_STEP = 0.02
_LAST_STEP = 1e-4
_SHRINK = 0.7
# Steps shrink when the bound closes less than this part of the gap in so many rounds.
_WINDOW = 40
_PROGRESS = 0.05
_MEMORY = 0.9
_LEAST_GAP = 1e-4
# Width of the smoothing, in shares of the gap that one node has.
_WIDTH = 1.0
_LEAST_WIDTH = 1e-9
# A choice within the rows is tried this often; it costs as much as some sweeps.
_TRY_EVERY = 4


@part
def _expected_usage(net: Network, held: Messages, width: float, load: Floats) -> float:
    """Sweep backward and sum the usage to expect in each row; return the bound.

    Args:
        net: The network.
        held: Its messages.
        width: Cost above the least one at which the weight of a choice falls by e.
        load: Result, in bytes, one entry more than rows.
    """
    bound, most = 0.0, ONE
    for i in range(net.size.size):
        most = net.size[i] if net.size[i] > most else most
    weights = np.zeros(most)
    load[:] = 0.0
    for i in range(net.size.size - 1, -1, -1):
        if held.stop[0]:
            return -INF
        bound += collect(BACKWARD, i, net, held)
        low, high = net.first_choice[i], net.first_choice[i + 1]
        if net.first_item[i] < net.first_item[i + 1]:
            least, total = least_in(held.node, low, high), 0.0
            for s in range(high - low):
                above = (held.node[low + s] - least) / width
                weights[s] = np.exp(-above if above < 50.0 else -50.0)
                total += weights[s]
            for k in range(net.first_item[i], net.first_item[i + 1]):
                used = 0.0
                for s in range(high - low):
                    used += weights[s] / total * net.usage[net.first_usage[k] + s]
                load[net.item_low[k]] += used
                load[net.item_high[k]] -= used
        pass_on(BACKWARD, i, net, held)
    for row in range(load.size - 1):
        load[row + 1] += load[row]
    return bound


@part
def _at_least(value: float, least: float) -> float:
    return value if value > least else least


@part
def _copy(values: Floats | Ints, to: Floats | Ints) -> None:
    """Do `to[:] = values`, which takes longer to compile."""
    for k in range(values.size):
        to[k] = values[k]


@part
def _try(net: Network, held: Messages, relaxed: bool, trial: Ints) -> float:
    """Return the cost of a choice that the messages suggest; infinite if it does not fit."""
    if relaxed:
        follow(net, held, trial)
        room = room_left(net, trial)
        if room.size and least_in(room, 0 * ONE, room.size) < 0:
            return INF
    elif not follow_within(net, held, trial):
        return INF
    return cost_of(net, trial)


class AscentState(NamedTuple):
    """What rounds change.

    Attributes:
        prices: Price of a byte in each row.
        average: Average of the gradients.
        best_prices: Prices of the best bound.
        best_choice: Best choice found.
        recent_choice: Best choice found in these rounds.
        numbers: The numbers of `Ascent`.
    """

    prices: Floats
    average: Floats
    best_prices: Floats
    best_choice: Ints
    recent_choice: Ints
    numbers: Floats


@part
def _note(cost: float, choice: Ints, state: AscentState) -> None:
    """Keep a choice if it is the best of these rounds, or of all."""
    if cost < state.numbers[5]:
        state.numbers[5] = cost
        _copy(choice, state.recent_choice)
    if cost < state.numbers[2]:
        state.numbers[2] = cost
        _copy(choice, state.best_choice)


@kernel
def _rounds(count: int, net: Network, held: Messages, state: AscentState) -> None:
    """Run `count` rounds."""
    prices, average, best_prices, _, _, numbers = state
    trial = state.best_choice.copy()
    numbers[5] = INF
    load = np.zeros(prices.size + 1)
    change = np.zeros(prices.size)
    for turn in range(count):
        _, best, cost, _, before, _ = numbers
        target = cost if cost < INF else 2 * abs(best) if best > -INF else INF
        gap = _at_least(target - best, _LEAST_GAP * abs(target)) if best > -INF else 0.0
        sweep(FORWARD, net, held)
        width = _at_least(_WIDTH * gap / net.size.size, _LEAST_WIDTH)
        bound = _expected_usage(net, held, width, load) + net.constant
        for row in range(prices.size):
            bound -= prices[row] * net.capacity[row]
        if held.stop[0]:
            break
        if bound > best:
            numbers[1] = bound
            _copy(prices, best_prices)
        numbers[3] += 1
        if numbers[3] >= _WINDOW:
            if numbers[1] - before < _PROGRESS * gap:
                numbers[0] *= _SHRINK
            numbers[3], numbers[4] = 0, numbers[1]
        found = _try(net, held, turn % _TRY_EVERY > 0, trial)
        _note(found, trial, state)
        length = 0.0
        for row in range(prices.size):
            average[row] = _MEMORY * average[row] + (1 - _MEMORY) * (load[row] - net.capacity[row])
            if prices[row] > 0 or average[row] > 0:
                length += average[row] ** 2
        if length == 0.0:
            continue
        aim = numbers[2] if numbers[2] < INF else numbers[1] + abs(numbers[1])
        reach = numbers[0] * _at_least(aim - bound, _LEAST_GAP * abs(aim)) / length
        for row in range(prices.size):
            change[row] = _at_least(prices[row] + reach * average[row], 0.0) - prices[row]
            prices[row] += change[row]
        add_prices(change, net, held)


@dataclass(slots=True)
class Ascent:
    """The state between rounds.

    Attributes:
        network: The problem.
        held: Messages at the present prices.
        prices: Price of a byte in each row.
        best_prices: Prices of the best bound.
        choice: Best choice found.
        recent_choice: Best choice found in the last run.
        bound: Best lower bound.
        cost: Cost of `choice`; infinite if none was found.
        step: Length of the next step, relative to the gap.
        average: Average of the gradients, in bytes for each row.
        window: Rounds since the steps were last looked at.
        before: Bound at that time.
        recent_cost: Cost of `recent_choice`; infinite if none was found.
    """

    network: Network
    held: Messages
    prices: Floats
    best_prices: Floats
    choice: Ints
    recent_choice: Ints
    bound: float = -np.inf
    cost: float = np.inf
    step: float = _FIRST_STEP
    average: Floats = field(default_factory=lambda: np.zeros(0))
    window: float = 0.0
    before: float = -np.inf
    recent_cost: float = np.inf

    @classmethod
    def of(cls, network: Network, stop: Flag | None = None) -> Ascent:
        """Return the state before the first round, all prices zero.

        Args:
            network: The problem.
            stop: Flag of one number; rounds end early once another thread sets it.
        """
        rows, count = len(network.capacity), len(network.size)
        return cls(
            network=network,
            held=no_messages(network, stop),
            prices=np.zeros(rows),
            best_prices=np.zeros(rows),
            choice=np.zeros(count, np.int64),
            recent_choice=np.zeros(count, np.int64),
            average=np.zeros(rows),
        )

    def run(self, rounds: int) -> None:
        """Run so many rounds, fewer if the bound is met."""
        numbers = np.array(
            [self.step, self.bound, self.cost, self.window, self.before, self.recent_cost]
        )
        state = AscentState(
            prices=self.prices,
            average=self.average,
            best_prices=self.best_prices,
            best_choice=self.choice,
            recent_choice=self.recent_choice,
            numbers=numbers,
        )
        _rounds(rounds, self.network, self.held, state)
        self.step, self.bound, self.cost, self.window, self.before, self.recent_cost = (
            numbers.tolist()
        )

    @property
    def entries_a_round(self) -> int:
        """Return how many entries of costs and matrices a round looks at."""
        return 2 * len(self.network.matrices) + len(self.network.cost)

    @property
    def is_done(self) -> bool:
        """Return whether steps have become too small to matter."""
        return self.step < _LAST_STEP

    def restart(self) -> None:
        """Go back to the prices of the best bound with large steps: other choices come up."""
        add_prices(self.best_prices - self.prices, self.network, self.held)
        self.prices[:] = self.best_prices
        self.average[:] = 0.0
        self.step, self.window, self.before = _FIRST_STEP, 0.0, -np.inf
