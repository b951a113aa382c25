"""From a choice that breaks rules to one that breaks none.

Every broken rule has a price: a forbidden pair of choices a large finite cost, a byte above a
memory row a price of that row.  Connected parts around broken rules are chosen anew; a rule that
stays broken becomes dearer, so that at last something else gives way.

Source: breakout, or guided local search, for constraint satisfaction (P. Morris, AAAI 1993).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwise.assignment.bounds.exact_bound import dearest
from meshwise.assignment.bounds.messages import follow, room_left, sweep
from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import INF
from meshwise.assignment.search.component import (
    ComponentScratch,
    below,
    cost_of_part,
    pick_part,
    prepare,
    scratch_for,
    sweep_part,
    value_within,
)
from meshwise.assignment.search.neighbourhood import Tries
from meshwise.assignment.search.room import Placed, Room, is_allowed, room_of, take
from meshwise.kernels.arrays import Bools, Flag, Floats, Ints
from meshwise.kernels.compiler import BACKWARD, FORWARD, NONE, ONE, kernel, part

_SWEEPS = 2
_FIRST_SWEEPS = 5
# A rule that a try left broken becomes dearer by this part.
_DEARER = 0.1


class Rules(NamedTuple):
    """What is broken, and what it costs.

    Attributes:
        is_forbidden: Which entries of the matrices are forbidden pairs.
        price: Price of a byte above each memory row.
        broken: Edges that may be at a forbidden pair, `num_broken` of them.
        listed: Whether an edge is in `broken`.
        num_broken: Their number, as an array of one.
        penalty: Cost of a forbidden pair at first.
    """

    is_forbidden: Bools
    price: Floats
    broken: Ints
    listed: Bools
    num_broken: Ints
    penalty: float


@part
def _is_broken(e: int, net: Network, choice: Ints, rules: Rules) -> bool:
    at: int = net.first_entry[e] + choice[net.u[e]] * net.size[net.v[e]] + choice[net.v[e]]
    return rules.is_forbidden[at]


@part
def _list_broken(e: int, net: Network, choice: Ints, rules: Rules) -> None:
    if not rules.listed[e] and _is_broken(e, net, choice, rules):
        rules.listed[e] = True
        rules.broken[rules.num_broken[0]] = e
        rules.num_broken[0] += 1


@kernel
def _list_all(net: Network, choice: Ints, rules: Rules) -> None:
    for e in range(net.u.size):
        _list_broken(e, net, choice, rules)


@part
def _random_broken(net: Network, choice: Ints, rules: Rules, rng: np.random.Generator) -> int:
    """Return a random edge at a forbidden pair, -1 if there is none.

    Those mended leave the list.
    """
    while rules.num_broken[0]:
        place = below(rules.num_broken[0], rng)
        e = rules.broken[place]
        if _is_broken(e, net, choice, rules):
            return e
        rules.listed[e] = False
        rules.num_broken[0] -= 1
        rules.broken[place] = rules.broken[rules.num_broken[0]]
    return NONE


@part
def _random_row(room: Room, rng: np.random.Generator) -> int:
    """Return a random row with too many bytes, -1 if there is none."""
    count, found = 0 * ONE, NONE
    for row in range(room.row.size):
        if room.row[row] < 0:
            count += 1
            if below(count, rng) == 0:
                found = row
    return found


@part
def _random_user(row: int, net: Network, choice: Ints, rng: np.random.Generator) -> int:
    """Return a random node that uses more of a row than it must, large ones rather.

    -1 if none does.
    """
    most, found = 0.0, NONE
    for i in range(net.size.size):
        for k in range(net.first_item[i], net.first_item[i + 1]):
            if net.item_low[k] <= row < net.item_high[k]:
                key = net.usage[net.first_usage[k] + choice[i]] * rng.random()
                if key > most:
                    most, found = key, i
    return found


@part
def _excess_of_choice(i: int, s: int, net: Network, room: Room, rules: Rules) -> float:
    """Price of the bytes by which choice `s` of a node would exceed rows further."""
    if is_allowed(i, s, net, room):
        return 0.0
    total = 0.0
    for k in range(net.first_item[i], net.first_item[i + 1]):
        used = net.usage[net.first_usage[k] + s]
        if used > 0:
            for row in range(net.item_low[k], net.item_high[k]):
                left = room.row[row]
                above = used - left if left > 0 else used
                if above > 0:
                    total += above * rules.price[row]
    return total


@part
def _choose_all(
    part: Ints, net: Network, choice: Ints, room: Room, work: ComponentScratch, rules: Rules
) -> float:
    """Choose the part's nodes in order; returns the price of the bytes above rows."""
    total = 0.0
    for i in part:
        least, best, above = INF, 0 * ONE, 0.0
        for s in range(net.size[i]):
            value = value_within(i, s, net, choice, work)
            if value < least:
                excess = _excess_of_choice(i, s, net, room, rules)
                if value + excess < least:
                    least, best, above = value + excess, s, excess
        choice[i] = best
        total += above
        take(i, best, ONE, net, room)
    return total


@part
def _dearer(e: int, added: float, net: Network, rules: Rules) -> None:
    for at in range(net.first_entry[e], net.first_entry[e + 1]):
        if rules.is_forbidden[at]:
            net.matrices[at] += added


@part
def _pick_rule(
    net: Network, choice: Ints, room: Room, rules: Rules, rng: np.random.Generator
) -> tuple[int, int, int]:
    """Return a broken rule: a node that takes part, and either an edge or a row; -1 for none."""
    edge, row = _random_broken(net, choice, rules, rng), _random_row(room, rng)
    if edge >= 0 and (row < 0 or rng.random() < 0.5):
        return (net.u[edge] if rng.random() < 0.5 else net.v[edge]), edge, NONE
    if row >= 0:
        return _random_user(row, net, choice, rng), NONE, row
    return NONE, NONE, NONE


@part
def _list_around(part: Ints, net: Network, choice: Ints, rules: Rules) -> None:
    for i in part:
        for k in range(net.first_later[i], net.first_later[i + 1]):
            _list_broken(net.later[k], net, choice, rules)
        for k in range(net.first_earlier[i], net.first_earlier[i + 1]):
            _list_broken(net.earlier[k], net, choice, rules)


@kernel
def _mend(
    tries: Tries,
    net: Network,
    placed: Placed,
    work: ComponentScratch,
    rules: Rules,
    rng: np.random.Generator,
) -> bool:
    """Choose parts around broken rules anew; whether none is broken any more."""
    choice, room = placed.choice, placed.room
    before = np.empty(net.size.size, np.int64)
    for _ in range(tries.num_parts):
        if work.held.stop[0]:
            break
        start, edge, row = _pick_rule(net, choice, room, rules, rng)
        if edge < 0 and row < 0:
            return True
        if start < 0:
            break
        count = int(np.exp(rng.random() * np.log(tries.largest))) + 1
        size = pick_part(start, 0 * ONE, count, net, work, rng)
        part = work.part[:size]
        now = prepare(part, 1.5 * rng.random(), net, choice, work)
        for _ in range(_SWEEPS):
            sweep_part(FORWARD, part, net, work)
            sweep_part(BACKWARD, part, net, work)
        for k in range(size - 1, -1, -1):
            i = part[k]
            before[i] = choice[i]
            take(i, int(choice[i]), NONE, net, room)
            now += _excess_of_choice(i, int(choice[i]), net, room, rules)
        new = _choose_all(part, net, choice, room, work, rules)
        new += cost_of_part(part, net, choice, work)
        if new <= now:
            _list_around(part, net, choice, rules)
        else:
            for i in part:
                take(i, int(choice[i]), NONE, net, room)
                choice[i] = before[i]
                take(i, int(choice[i]), ONE, net, room)
        if row >= 0 and room.row[row] < 0:
            rules.price[row] *= 1.0 + _DEARER
        elif edge >= 0 and _is_broken(edge, net, choice, rules):
            _dearer(edge, _DEARER * rules.penalty, net, rules)
        for i in part:
            work.inside[i] = False
    return False


@dataclass(slots=True)
class Repair:
    """A choice on its way to breaking no rule.

    Attributes:
        network: With finite costs for forbidden pairs.
        choice: As it is.
        work: Scratch; its prices of memory may be set between runs.
    """

    network: Network
    choice: Ints
    room: Room
    work: ComponentScratch
    rules: Rules

    @classmethod
    def of(cls, network: Network, stop: Flag | None = None) -> Repair:
        """Begin with what the costs alone suggest; kernels heed the flag."""
        is_forbidden = np.isinf(network.matrices)
        # About how much the choice of one node decides.
        penalty = (1.0 + dearest(network) - network.constant) / max(len(network.size), 1)
        if is_forbidden.any():
            network = network._replace(matrices=np.where(is_forbidden, penalty, network.matrices))
        count = len(network.u)
        choice = np.zeros(len(network.size), np.int64)
        work = scratch_for(network, stop)
        for _ in range(_FIRST_SWEEPS):
            sweep(FORWARD, network, work.held)
            sweep(BACKWARD, network, work.held)
        follow(network, work.held, choice)
        usage = max(float(network.usage.mean()) if len(network.usage) else 0.0, 1.0)
        rules = Rules(
            is_forbidden=is_forbidden,
            price=np.full(len(network.capacity), penalty / usage),
            broken=np.zeros(count, np.int64),
            listed=np.zeros(count, np.bool_),
            num_broken=np.zeros(1, np.int64),
            penalty=penalty,
        )
        _list_all(network, choice, rules)
        room = room_of(room_left(network, choice))
        return cls(network, choice, room, work, rules)

    def run(self, tries: int, largest: int, rng: np.random.Generator) -> bool:
        """Mend so many parts of at most `largest` nodes; whether no rule is broken any more."""
        placed = Placed(self.choice, self.room)
        limits = Tries(tries, largest)
        return _mend(limits, self.network, placed, self.work, self.rules, rng)
