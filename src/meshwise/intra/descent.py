"""Coordinate descent: a quick way from any choice to a better one."""

from __future__ import annotations

import numpy as np

from meshwise.intra.problem import Array, Problem, row_weight

_SWEEPS = 30


def improve(problem: Problem, choice: tuple[int, ...]) -> tuple[int, ...]:
    """Best choice node by node until nothing changes; rows are not looked at."""
    neighbours: list[list[tuple[int, Array]]] = [[] for _ in problem.costs]
    for pair in problem.pairs:
        neighbours[pair.u].append((pair.v, pair.cost))
        neighbours[pair.v].append((pair.u, pair.cost.T))
    current = list(choice)
    for _ in range(_SWEEPS):
        changed = False
        for u, costs in enumerate(problem.costs):
            total = costs
            for v, matrix in neighbours[u]:
                total = total + matrix[:, current[v]]
            best = int(np.argmin(total))
            if total[best] < total[current[u]]:
                current[u] = best
                changed = True
        if not changed:
            break
    return tuple(current)


class _Within:
    """Sums of a problem with rows at one choice, for moves of single nodes and of pairs."""

    def __init__(self, problem: Problem, choice: tuple[int, ...]) -> None:
        self.problem = problem
        self.choice = list(choice)
        self.costs: list[list[tuple[int, Array]]] = [[] for _ in problem.costs]
        self.weights: list[dict[int, Array]] = [{} for _ in problem.costs]
        self.shared: list[list[tuple[int, int, Array]]] = [[] for _ in problem.costs]
        for pair in problem.pairs:
            self.costs[pair.u].append((pair.v, pair.cost))
            self.costs[pair.v].append((pair.u, pair.cost.T))
        for k, row in enumerate(problem.rows):
            for u, weights in row.nodes:
                self.weights[u][k] = weights
            for u, v, weights in row.pairs:
                self.shared[u].append((k, v, weights))
                self.shared[v].append((k, u, weights.T))
        self.room = [row.limit - row_weight(row, choice) for row in problem.rows]

    def cost(self, u: int, without: int = -1) -> Array:
        """Cost of each choice of `u` with all nodes but `without` as they are."""
        total = self.problem.costs[u]
        for v, matrix in self.costs[u]:
            if v != without:
                total = total + matrix[:, self.choice[v]]
        return total

    def rows(self, u: int, without: int = -1) -> dict[int, Array]:
        """Weight of each choice of `u` in each row that it touches."""
        total = dict(self.weights[u])
        for k, v, weights in self.shared[u]:
            if v != without:
                column = weights[:, self.choice[v]]
                total[k] = total[k] + column if k in total else column
        return total

    def move_one(self, u: int) -> bool:
        """Take the cheapest choice of `u` that keeps all rows."""
        total, now = self.cost(u), self.choice[u]
        rows = self.rows(u)
        for k, weights in rows.items():
            total = np.where(weights - weights[now] <= self.room[k], total, np.inf)
        best = int(np.argmin(total))
        if not total[best] < total[now]:
            return False
        for k, weights in rows.items():
            self.room[k] -= float(weights[best] - weights[now])
        self.choice[u] = best
        return True

    def move_two(self, u: int, v: int, matrix: Array) -> bool:
        """Take the cheapest choices of two neighbours that keep all rows."""
        total = self.cost(u, v)[:, None] + self.cost(v, u)[None, :] + matrix
        a, b = self.choice[u], self.choice[v]
        if not total.min() < total[a, b]:
            return False
        left, right = self.rows(u, v), self.rows(v, u)
        both = {k: w for k, other, w in self.shared[u] if other == v}
        change: dict[int, Array] = {}
        for k in {*left, *right, *both}:
            weights = np.zeros(total.shape)
            if k in left:
                weights = weights + left[k][:, None]
            if k in right:
                weights = weights + right[k][None, :]
            if k in both:
                weights = weights + both[k]
            change[k] = weights - weights[a, b]
            total = np.where(change[k] <= self.room[k], total, np.inf)
        i, j = divmod(int(np.argmin(total)), total.shape[1])
        if not total[i, j] < total[a, b]:
            return False
        for k, weights in change.items():
            self.room[k] -= float(weights[i, j])
        self.choice[u], self.choice[v] = i, j
        return True


def improve_within(problem: Problem, choice: tuple[int, ...]) -> tuple[int, ...]:
    """Best choice node by node and pair by pair, among those that keep all rows.

    Args:
        problem: Each pair of nodes at most once.
        choice: Satisfies the rows.
    """
    state = _Within(problem, choice)
    for _ in range(_SWEEPS):
        changed = False
        for u in range(len(problem.costs)):
            changed |= state.move_one(u)
        for pair in problem.pairs:
            changed |= state.move_two(pair.u, pair.v, pair.cost)
        if not changed:
            break
    return tuple(state.choice)
