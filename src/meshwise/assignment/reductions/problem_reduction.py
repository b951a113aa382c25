"""Exact reductions: what remains has the same optimum, and every answer extends to all nodes.

A node with no, one or two neighbours is folded into them by (min,+); a choice that another
choice of its node beats whatever the neighbours do is dropped; parallel edges are added.  Nodes
in rows are left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.problem import Array, PairCost, Problem, Row
from meshwise.assignment.reductions.dominance import (
    add_dearest,
    drop_impossible,
    folded_between,
    not_beaten,
)

Indices = NDArray[np.intp]

# Larger dominance tests cost more than they save.
_DOMINANCE_CELLS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folded:
    """A node that was folded: cost of its choices given its neighbours.

    Both sides keep the original numbers of the choices that were left at that time.
    """

    node: int
    cost: Array
    alive: Indices
    neighbours: tuple[tuple[int, Array, Indices], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A smaller problem and the way back.

    Attributes:
        problem: What remains.
        nodes: For each node of `problem` the node of the original.
        alive: For each original node the choices that are left.
        folded: Folded nodes in the order in which they went.
        constant: Cost that left the problem.
        infeasible: A node lost all its choices.
    """

    problem: Problem
    nodes: tuple[int, ...]
    alive: tuple[Indices, ...]
    folded: tuple[_Folded, ...]
    constant: float
    infeasible: bool

    def expand(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        """The best extension of a choice of `problem` to the original one."""
        chosen = {u: int(self.alive[u][i]) for u, i in zip(self.nodes, choice, strict=True)}
        for item in reversed(self.folded):
            cost = item.cost
            for other, matrix, alive in item.neighbours:
                cost = cost + matrix[:, alive.searchsorted(chosen[other])]
            chosen[item.node] = int(item.alive[cost.argmin()])
        return tuple(chosen[u] for u in range(len(self.alive)))

    def restrict(self, choice: tuple[int, ...]) -> tuple[int, ...] | None:
        """A choice of the original as one of `problem`; None if a choice of it was dropped."""
        out: list[int] = []
        for u in self.nodes:
            found = np.flatnonzero(self.alive[u] == choice[u])
            if not found.size:
                return None
            out.append(int(found[0]))
        return tuple(out)


class _Reducer:
    def __init__(self, problem: Problem, *, dominance: bool, keep: Collection[int]) -> None:
        self.dominance = dominance
        self.cost = {u: c.astype(np.float64) for u, c in enumerate(problem.costs)}
        self.alive = {u: np.arange(len(c)) for u, c in enumerate(problem.costs)}
        self.adjacent: dict[int, dict[int, Array]] = {u: {} for u in self.cost}
        self.locked = {u for row in problem.rows for u, _ in row.nodes} | {
            u for row in problem.rows for pair in row.pairs for u in pair[:2]
        }
        self.locked.update(keep)
        self.folded: list[_Folded] = []
        self.constant = 0.0
        self.infeasible = False
        for pair in problem.pairs:
            self.add_edge(pair.u, pair.v, pair.cost.astype(np.float64, copy=False))
        self.todo = deque(self.cost)
        self.waiting = set(self.cost)

    def add_edge(self, u: int, v: int, matrix: Array) -> None:
        if v in self.adjacent[u]:
            matrix = self.adjacent[u][v] + matrix
        self.adjacent[u][v] = matrix
        self.adjacent[v][u] = matrix.T

    def touch(self, u: int) -> None:
        if u not in self.waiting:
            self.waiting.add(u)
            self.todo.append(u)

    def keep(self, u: int, mask: NDArray[np.bool_]) -> None:
        """Drop the choices of `u` outside of `mask`."""
        self.alive[u] = self.alive[u][mask]
        self.cost[u] = self.cost[u][mask]
        for v in self.adjacent[u]:
            matrix = self.adjacent[u][v][mask]
            self.adjacent[u][v] = matrix
            self.adjacent[v][u] = matrix.T
            self.touch(v)

    def drop_impossible(self, u: int) -> None:
        possible = np.isfinite(self.cost[u])
        for matrix in self.adjacent[u].values():
            drop_impossible(possible, np.ascontiguousarray(matrix))
        if not possible.all():
            self.keep(u, possible)
        if not len(self.alive[u]):
            self.infeasible = True

    def drop_dominated(self, u: int) -> None:
        """Drop choice j if some i costs no more in every situation; ties keep the first."""
        count = len(self.alive[u])
        cells = count * count * max((m.shape[1] for m in self.adjacent[u].values()), default=1)
        if count < 2 or cells > _DOMINANCE_CELLS:
            return
        # worst[i, j]: how much dearer choice i may be than j.
        worst = self.cost[u][:, None] - self.cost[u][None, :]
        for matrix in self.adjacent[u].values():
            add_dearest(worst, np.ascontiguousarray(matrix))
        stays = not_beaten(worst)
        if not stays.all():
            self.keep(u, stays)

    def fix(self, u: int) -> None:
        """A node of one choice is a constant and a cost of its neighbours."""
        self.folded.append(_Folded(node=u, cost=self.cost[u], alive=self.alive[u], neighbours=()))
        self.constant += float(self.cost[u][0])
        for v, matrix in self.adjacent[u].items():
            self.cost[v] = self.cost[v] + matrix[0]
            del self.adjacent[v][u]
            self.touch(v)
        del self.cost[u]
        del self.adjacent[u]

    def fold(self, u: int) -> None:
        neighbours = sorted(self.adjacent[u].items())
        self.folded.append(
            _Folded(
                node=u,
                cost=self.cost[u],
                alive=self.alive[u],
                neighbours=tuple((v, m, self.alive[v]) for v, m in neighbours),
            )
        )
        for v, _ in neighbours:
            del self.adjacent[v][u]
            self.touch(v)
        if not neighbours:
            self.constant += float(self.cost[u].min())
        elif len(neighbours) == 1:
            v, matrix = neighbours[0]
            self.cost[v] = self.cost[v] + (self.cost[u][:, None] + matrix).min(axis=0)
        else:
            (v, left), (w, right) = neighbours
            through = folded_between(
                self.cost[u], np.ascontiguousarray(left), np.ascontiguousarray(right)
            )
            self.add_edge(v, w, through)
        del self.cost[u]
        del self.adjacent[u]

    def run(self) -> None:
        while self.todo and not self.infeasible:
            u = self.todo.popleft()
            self.waiting.discard(u)
            if u not in self.cost:
                continue
            self.drop_impossible(u)
            if self.infeasible:
                return
            if u in self.locked:
                continue
            if len(self.alive[u]) == 1:
                self.fix(u)
                continue
            if self.dominance:
                self.drop_dominated(u)
            if len(self.adjacent[u]) <= 2:
                self.fold(u)


def reduce_problem(
    problem: Problem, *, dominance: bool = True, keep: Collection[int] = ()
) -> Reduction:
    """Shrink a problem without changing its optimum.

    Args:
        problem: The problem.
        dominance: Whether to drop dominated choices too, which is the dearer part.
        keep: Nodes that stay, with all choices that are possible.
    """
    reducer = _Reducer(problem, dominance=dominance, keep=keep)
    reducer.run()
    nodes = tuple(sorted(reducer.cost))
    number = {u: i for i, u in enumerate(nodes)}
    alive = tuple(reducer.alive[u] for u in range(len(problem.costs)))
    pairs = tuple(
        PairCost(u=number[u], v=number[v], cost=matrix)
        for u in nodes
        for v, matrix in sorted(reducer.adjacent[u].items())
        if u < v
    )
    rows = tuple(
        Row(
            nodes=tuple((number[u], w[alive[u]]) for u, w in row.nodes),
            pairs=tuple(
                (number[u], number[v], w[np.ix_(alive[u], alive[v])]) for u, v, w in row.pairs
            ),
            limit=row.limit,
            name=row.name,
        )
        for row in problem.rows
    )
    return Reduction(
        problem=Problem(costs=tuple(reducer.cost[u] for u in nodes), pairs=pairs, rows=rows),
        nodes=nodes,
        alive=alive,
        folded=tuple(reducer.folded),
        constant=reducer.constant,
        infeasible=reducer.infeasible,
    )
