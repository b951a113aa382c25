"""A solution without kernels, for as long as those are being compiled.

The choices of least cost, then those of least usage; else node by node, every node that was not
looked at yet with its least usage, and then those that break a rule again, until none does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.instance import INFINITE_COST, Instance, evaluate, is_solution
from meshwise.assignment.network import starts
from meshwise.kernels.arrays import Ints

_LOOK_EVERY = 64


def first_solution(
    instance: Instance, *, must_stop: Callable[[], bool], seed: int = 0
) -> tuple[int, ...] | None:
    """Return any solution; None if none was found.

    Args:
        instance: The problem.
        must_stop: Function that says whether time is over.
        seed: Seed of the random numbers.
    """
    if not instance.num_nodes or np.diff(instance.first_choice).min() == 0:
        return None if instance.num_nodes else ()
    least = [_least(values, instance) for values in (instance.costs, instance.usages)]
    found = [tuple(c.tolist()) for c in least if is_solution(instance, c.tolist())]
    if found:
        return min(found, key=lambda c: evaluate(instance, c).cost or 0)
    return _Greedy.of(instance, least[1], seed).run(must_stop)


def _least(values: Ints, instance: Instance) -> Ints:
    """Return the first least one of each node; what is forbidden comes last."""
    first, sizes = instance.first_choice[:-1], np.diff(instance.first_choice)
    keys = np.where(instance.costs >= INFINITE_COST, np.iinfo(np.int64).max, values)
    is_least = keys == np.repeat(np.minimum.reduceat(keys, first), sizes)
    at = np.flatnonzero(is_least)
    owner = np.repeat(np.arange(len(sizes)), sizes)[at]
    return at[np.unique(owner, return_index=True)[1]] - first


@dataclass(slots=True)
class _Greedy:
    """Choices on their way to a solution.

    Attributes:
        instance: The problem.
        choice: Choice of each node; those not looked at yet count with their usage only.
        is_chosen: Which nodes were looked at.
        load: Bytes used at each time.
        interval: First time and first time after it of each node, as positions in `load`.
        edges_of: Edges at a node, those of node i from `first_edge[i]` to `first_edge[i + 1]`.
        penalty: Penalty of what is forbidden, and of bytes above the limit, as a part of those
            that are used.
        rng: Random numbers.
    """

    instance: Instance
    choice: Ints
    is_chosen: NDArray[np.bool_]
    load: Ints
    interval: Ints
    edges_of: Ints
    first_edge: Ints
    penalty: float
    rng: np.random.Generator

    @classmethod
    def of(cls, instance: Instance, choice: Ints, seed: int) -> _Greedy:
        """Begin with choices of little usage."""
        count, ends = instance.num_nodes, instance.edges.T.ravel()
        times, ranks = np.unique(instance.intervals, return_inverse=True)
        ranks = ranks.reshape(-1, 2)
        ranks[:, 1] = np.maximum(ranks[:, 0], ranks[:, 1])
        change = np.zeros(len(times) + 1, np.int64)
        used = instance.usages[instance.first_choice[:-1] + choice]
        np.add.at(change, ranks[:, 0], used)
        np.subtract.at(change, ranks[:, 1], used)
        finite = instance.costs[instance.costs < INFINITE_COST]
        return cls(
            instance=instance,
            choice=choice.copy(),
            is_chosen=np.zeros(count, np.bool_),
            load=np.cumsum(change),
            interval=ranks,
            edges_of=np.argsort(ends, kind="stable") % max(len(instance.edges), 1),
            first_edge=starts(np.bincount(ends, minlength=count)),
            penalty=1.0 + float(finite.mean() if len(finite) else 0.0) * 100,
            rng=np.random.default_rng(seed),
        )

    def run(self, must_stop: Callable[[], bool]) -> tuple[int, ...] | None:
        """Choose all nodes, then those that break a rule, until none does or time is over."""
        todo = np.arange(self.instance.num_nodes)
        while len(todo):
            for number, i in enumerate(todo.tolist()):
                if number % _LOOK_EVERY == 0 and must_stop():
                    return None
                self.choose(i)
            todo = self.rng.permutation(self.wrong())
        found = tuple(self.choice.tolist())
        return found if is_solution(self.instance, found) else None

    def choose(self, i: int) -> None:
        """Choose a node anew as its neighbours and the limit want it."""
        task = self.instance
        first, last = int(task.first_choice[i]), int(task.first_choice[i + 1])
        value = self.priced(task.costs[first:last])
        for e in self.edges_of[self.first_edge[i] : self.first_edge[i + 1]].tolist():
            u, v = task.edges[e].tolist()
            other = v if u == i else u
            if self.is_chosen[other]:
                matrix = task.edge_costs[task.first_entry[e] : task.first_entry[e + 1]]
                matrix = (
                    matrix.reshape(-1, len(value)) if v == i else matrix.reshape(len(value), -1)
                )
                at = int(self.choice[other])
                value += self.priced(matrix[at] if v == i else matrix[:, at])
        low, high = self.interval[i].tolist()
        usage = task.usages[first:last]
        if task.limit is not None and low < high:
            left = task.limit - int(self.load[low:high].max()) + int(usage[self.choice[i]])
            above = np.maximum(usage - left, 0) / max(int(usage.max()), 1)
            value += self.penalty * above
        # Among choices that are about as good, not always the same one.
        value += self.rng.random(len(value)) * 0.01 * self.penalty * self.is_chosen[i]
        best = int(np.argmin(value))
        self.load[low:high] += usage[best] - usage[self.choice[i]]
        self.choice[i], self.is_chosen[i] = best, True

    def priced(self, costs: Ints) -> NDArray[np.float64]:
        """Return costs, with a finite one for what is forbidden."""
        return np.where(costs >= INFINITE_COST, self.penalty, costs.astype(np.float64))

    def wrong(self) -> Ints:
        """Return nodes at a forbidden pair or choice, or live where the limit is broken."""
        task, choice = self.instance, self.choice
        wrong = task.costs[task.first_choice[:-1] + choice] >= INFINITE_COST
        u, v = task.edges.T
        at = task.first_entry[:-1] + choice[u] * np.diff(task.first_choice)[v] + choice[v]
        broken = task.edge_costs[at] >= INFINITE_COST
        wrong[u[broken]] = wrong[v[broken]] = True
        if task.limit is not None:
            above = starts(self.load > task.limit)
            wrong |= above[self.interval[:, 1]] > above[self.interval[:, 0]]
        return np.flatnonzero(wrong)
