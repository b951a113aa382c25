"""A problem in a few flat arrays, as compiled passes over its nodes read it."""

# pyright: basic
# Kernels: Numba checks their types when it compiles them.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwise.assignment.problem import Problem
from meshwise.kernels.compiler import part

Array = Any
Ints = NDArray[np.int64]


class Flat(NamedTuple):
    """Costs of nodes and pairs one after the other; rows are not in it.

    Attributes:
        node_at: Where the costs of each node begin in `cost`, and where those of the last end.
        cost: Of each choice of each node.
        pair_at: Where the costs of each pair begin in `matrix`; they are (u's choice, v's choice).
        matrix: Costs of pairs.
        u: First node of each pair.
        v: Second node of each pair.
        around_at: Where the pairs of each node begin in `around`, and where those of the last end.
        around: Pairs of each node, in their order.
    """

    node_at: Ints
    cost: NDArray[np.float64]
    pair_at: Ints
    matrix: NDArray[np.float64]
    u: Ints
    v: Ints
    around_at: Ints
    around: Ints

    @classmethod
    def of(cls, problem: Problem) -> Flat:
        """The costs of a problem."""
        count, pairs = len(problem.costs), problem.pairs
        u = np.array([p.u for p in pairs], np.int64)
        v = np.array([p.v for p in pairs], np.int64)
        ends = np.stack((u, v), axis=1).ravel()
        return cls(
            node_at=_starts([c.size for c in problem.costs]),
            cost=_joined(problem.costs),
            pair_at=_starts([p.cost.size for p in pairs]),
            matrix=_joined([p.cost.ravel() for p in pairs]),
            u=u,
            v=v,
            around_at=_starts(np.bincount(ends, minlength=count).tolist()),
            # A stable sort keeps the pairs of a node in their order.
            around=np.argsort(ends, kind="stable") // 2,
        )

    def most_choices(self) -> int:
        """Of one node."""
        return int(np.diff(self.node_at).max(initial=0))


def _starts(sizes: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int64)


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays).astype(np.float64) if len(arrays) else np.zeros(0)


@part
def _add_before(e: Any, size: Any, flat: Flat, choice: Array, total: Array) -> None:
    """Add what pair `e` costs each choice of its second node."""
    row = flat.pair_at[e] + choice[flat.u[e]] * size
    for s in range(size):
        total[s] += flat.matrix[row + s]


@part
def cost_before(i: Any, flat: Flat, choice: Array, total: Array) -> None:
    """Cost of each choice of node `i` with its neighbours before it as they are."""
    start = flat.node_at[i]
    size = flat.node_at[i + 1] - start
    total[:size] = flat.cost[start : start + size]
    for k in range(flat.around_at[i], flat.around_at[i + 1]):
        e = flat.around[k]
        if flat.v[e] == i:
            _add_before(e, size, flat, choice, total)


@part
def cost_at(i: Any, without: Any, flat: Flat, choice: Array, total: Array) -> None:
    """Cost of each choice of node `i` with its neighbours as they are, but for one (-1: none)."""
    start = flat.node_at[i]
    size = flat.node_at[i + 1] - start
    total[:size] = flat.cost[start : start + size]
    for k in range(flat.around_at[i], flat.around_at[i + 1]):
        e = flat.around[k]
        other = flat.u[e] + flat.v[e] - i
        if other == without:
            continue
        if flat.v[e] == i:
            _add_before(e, size, flat, choice, total)
        else:
            others = flat.node_at[other + 1] - flat.node_at[other]
            column = flat.pair_at[e] + choice[other]
            for s in range(size):
                total[s] += flat.matrix[column + s * others]
