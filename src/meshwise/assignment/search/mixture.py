"""The best mixture of several choices of a problem within its row.

Where two choices differ, the nodes fall into parts that have no pair of nodes in common: each part
may be taken of either choice, whatever is taken of the others, and what it adds to cost and weight
does not depend on them.  So the best mixture is a knapsack over the parts.  Layers of a pipeline
that meet in the same states are such parts, and so are weights of one layer that are laid out apart
from each other.

Pareto lists of (weight, cost) solve the knapsack: a label that another one beats in both goes.
Where more than `MOST_LABELS` are left, only the cheapest of each interval of weight stays: what is
found then costs no more than the best with room less by one interval (a `MOST_LABELS`-th of the
weights) for each part that this happened at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.problem import Array, Problem, Row, objective, row_weight

# Labels that are kept side by side; beyond, the cheapest of each interval of weight.
MOST_LABELS = 4096
# Mixtures of mixtures, at most.
_ROUNDS = 8
# A mixture that is better by less than this part of the cost is rounding.
_BETTER = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class MixtureLabels:
    """Sums of subsets of parts; no label is as good as another one in both.

    Attributes:
        weight: Weight of each label, ascending.
        cost: Cost of each label, descending.
        before: Number of the label that each one comes from.
        is_taken: Whether the last part is in each one.
    """

    weight: Array
    cost: Array
    before: NDArray[np.intp]
    is_taken: NDArray[np.bool_]


def with_part(labels: MixtureLabels, weight: float, cost: float, room: float) -> MixtureLabels:
    """Return labels with and without one more part.

    Args:
        labels: Labels of the parts before.
        weight: What the part adds, below 0 too.
        cost: What the part adds.
        room: Labels that weigh more are not kept.
    """
    size = len(labels.weight)
    weights = np.concatenate((labels.weight, labels.weight + weight))
    costs = np.concatenate((labels.cost, labels.cost + cost))
    order = np.lexsort((costs, weights))
    order = order[weights[order] <= room]
    least = np.minimum.accumulate(costs[order])
    is_best = np.ones(len(order), np.bool_)
    is_best[1:] = costs[order][1:] < least[:-1]
    order = order[is_best]
    if len(order) > MOST_LABELS:
        # The list falls in cost: the last one of each interval of weight is its cheapest.
        low, high = weights[order[0]], weights[order[-1]]
        interval = np.floor((weights[order] - low) * (MOST_LABELS / max(high - low, 1e-300)))
        order = order[np.append(interval[1:] != interval[:-1], True)]
    return MixtureLabels(weights[order], costs[order], order % size, order >= size)


def best_subset(parts: Sequence[tuple[float, float]], room: float) -> list[int] | None:
    """Return the cheapest subset of parts that weighs at most `room`; None if all weigh more.

    Args:
        parts: (weight, cost) of each, both also below 0.
        room: Least upper bound of the weight.
    """
    # What still can come off: a label beyond this never comes back into the room.
    falls = [min(weight, 0.0) for weight, _ in parts]
    left = np.append(np.cumsum(falls[::-1])[::-1], 0.0)
    slack = 1e-9 * (abs(room) + sum(abs(w) for w, _ in parts))
    start = MixtureLabels(np.zeros(1), np.zeros(1), np.zeros(1, np.intp), np.zeros(1, np.bool_))
    steps = [start]
    for number, (weight, cost) in enumerate(parts):
        most = room - float(left[number + 1]) + slack
        steps.append(with_part(steps[-1], weight, cost, most))
        if not len(steps[-1].weight):
            return None
    fitting = np.flatnonzero(steps[-1].weight <= room)
    if not len(fitting):
        return None
    label, taken = int(fitting[-1]), list[int]()
    for number in range(len(parts) - 1, -1, -1):
        step = steps[number + 1]
        if step.is_taken[label]:
            taken.append(number)
        label = int(step.before[label])
    return taken[::-1]


class Recombiner:
    """Mixes choices of one problem with one row."""

    def __init__(self, problem: Problem) -> None:
        """Look at who has pairs with whom.

        Args:
            problem: With exactly one row.
        """
        (self.row,) = problem.rows
        self.problem = problem
        self.cost_pairs: list[list[tuple[int, Array]]] = [[] for _ in problem.costs]
        self.weight_pairs: list[list[tuple[int, Array]]] = [[] for _ in problem.costs]
        self.weights: list[Array | None] = [None] * len(problem.costs)
        for pair in problem.pairs:
            _both_ways(self.cost_pairs, pair.u, pair.v, pair.cost)
        for u, v, weights in self.row.pairs:
            _both_ways(self.weight_pairs, u, v, weights)
        for u, weights in self.row.nodes:
            before = self.weights[u]
            self.weights[u] = weights if before is None else before + weights

    def best(self, choices: Sequence[tuple[int, ...]], limit: float) -> tuple[int, ...] | None:
        """Return the best mixture met; None if none fits.

        Args:
            choices: All possible, at least one; they may break the row.
            limit: Limit of the row, in place of its own.
        """
        row = Row(nodes=self.row.nodes, pairs=self.row.pairs, limit=limit)
        # Mixtures of the lightest with the others are at least as good as any that fits.
        current = min(choices, key=lambda c: (row_weight(row, c), objective(self.problem, c)))
        fitting = [c for c in choices if row_weight(row, c) <= row.limit]
        current = min(fitting, key=lambda c: objective(self.problem, c), default=current)
        if row_weight(row, current) > row.limit:
            current = self._lightest(choices, row)
        if row_weight(row, current) > row.limit:
            return None
        for _ in range(_ROUNDS):
            before = current
            for other in choices:
                current = self._mixed(current, other, row)
            if current == before:
                break
        return current

    def _lightest(self, choices: Sequence[tuple[int, ...]], row: Row) -> tuple[int, ...]:
        """Return the mixture that weighs least, part by part."""
        current = min(choices, key=lambda c: row_weight(row, c))
        for other in choices:
            for part in self.parts(current, other):
                weight, _ = self._change(current, other, part)
                if weight < 0:
                    current = _with(current, other, part)
        return current

    def _mixed(self, current: tuple[int, ...], other: tuple[int, ...], row: Row) -> tuple[int, ...]:
        """Return the best mixture of two, of which the first fits."""
        room = row.limit - row_weight(row, current)
        certain: list[int] = []
        parts: list[list[int]] = []
        changes: list[tuple[float, float]] = []
        for part in self.parts(current, other):
            weight, cost = self._change(current, other, part)
            if weight <= 0 and cost <= 0:
                certain += part
                room -= weight
            elif weight < 0 or cost < 0:
                parts.append(part)
                changes.append((weight, cost))
        taken = best_subset(changes, room) or []
        mixed = _with(current, other, [*certain, *(n for k in taken for n in parts[k])])
        # Sums over parts are rounded otherwise than the whole.
        cost, before = objective(self.problem, mixed), objective(self.problem, current)
        fits = row_weight(row, mixed) <= row.limit
        return mixed if fits and cost < before - _BETTER * abs(before) else current

    def parts(self, one: tuple[int, ...], other: tuple[int, ...]) -> Iterator[list[int]]:
        """Yield the nodes that hang together where two choices differ, by their first one."""
        differ = {n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b}
        for first in sorted(differ):
            if first not in differ:
                continue
            differ.discard(first)
            part = [first]
            for u in part:
                for v, _ in (*self.cost_pairs[u], *self.weight_pairs[u]):
                    if v in differ:
                        differ.discard(v)
                        part.append(v)
            yield part

    def _change(
        self, one: tuple[int, ...], other: tuple[int, ...], part: Sequence[int]
    ) -> tuple[float, float]:
        """Return what weight and cost change if a part is taken of the other choice."""
        taken = dict.fromkeys(part)
        weight = cost = 0.0
        for u in part:
            cost += self.problem.costs[u][other[u]] - self.problem.costs[u][one[u]]
            alone = self.weights[u]
            if alone is not None:
                weight += alone[other[u]] - alone[one[u]]
            cost += _of_pairs(self.cost_pairs[u], u, one, other, taken)
            weight += _of_pairs(self.weight_pairs[u], u, one, other, taken)
        return float(weight), float(cost)


def _both_ways(pairs: list[list[tuple[int, Array]]], u: int, v: int, matrix: Array) -> None:
    pairs[u].append((v, matrix))
    pairs[v].append((u, matrix.T))


def _of_pairs(
    pairs: Sequence[tuple[int, Array]],
    u: int,
    one: tuple[int, ...],
    other: tuple[int, ...],
    taken: dict[int, None],
) -> float:
    """Return what the pairs of a node change; those inside a part count at their first end."""
    total = 0.0
    for v, matrix in pairs:
        if v not in taken:
            total += matrix[other[u], one[v]] - matrix[one[u], one[v]]
        elif u < v:
            total += matrix[other[u], other[v]] - matrix[one[u], one[v]]
    return total


def _with(one: tuple[int, ...], other: tuple[int, ...], nodes: Sequence[int]) -> tuple[int, ...]:
    mixed = list(one)
    for n in nodes:
        mixed[n] = other[n]
    return tuple(mixed)
