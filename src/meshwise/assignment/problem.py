"""Assignment with pairwise costs: each node takes one choice, edges price pairs of choices.

Rows bound sums over nodes (bytes that are live at one time).  The problem knows nothing of
graphs or meshes, so that solvers and the checker can be judged alone.

Source: Alpa eq. 1; the form is that of the ASPLOS 2025 contest on intra-operator parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.kernels.arrays import Floats

Array = Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCost:
    """Cost of pairs of choices of two different nodes, `u < v`."""

    u: int
    v: int
    cost: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`sum of the weights of what is chosen <= limit`.

    Attributes:
        nodes: Pairs (node, weight of each of its choices).
        pairs: The same for pairs of choices; (u, v, weights) with u < v.
        limit: Upper bound.
        name: For messages.
    """

    nodes: tuple[tuple[int, Array], ...]
    limit: float
    pairs: tuple[tuple[int, int, Array], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The whole problem; an infinite cost marks what must not be chosen."""

    costs: tuple[Array, ...]
    pairs: tuple[PairCost, ...]
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Answer of a solver.

    Attributes:
        choice: One choice a node; empty if none is feasible.
        cost: Its objective.
        bound: No feasible choice costs less.
        status: `optimal`, `time limit` or `infeasible`.
        num_left: Nodes that were left after the reductions.
        nearest: If none is feasible, a choice that comes as near to the rows as is known.
    """

    choice: tuple[int, ...]
    cost: float
    bound: float
    status: str
    num_left: int
    nearest: tuple[int, ...] = ()


def objective(problem: Problem, choice: Sequence[int]) -> float:
    """Cost of a choice."""
    total = sum(float(c[i]) for c, i in zip(problem.costs, choice, strict=True))
    return total + sum(float(p.cost[choice[p.u], choice[p.v]]) for p in problem.pairs)


def row_weight(row: Row, choice: Sequence[int]) -> float:
    """Left side of a row."""
    total = sum(float(weights[choice[node]]) for node, weights in row.nodes)
    return total + sum(float(w[choice[u], choice[v]]) for u, v, w in row.pairs)


def is_feasible(problem: Problem, choice: Sequence[int]) -> bool:
    """Whether a choice satisfies all rows and costs a finite amount."""
    return objective(problem, choice) < float("inf") and all(
        row_weight(row, choice) <= row.limit for row in problem.rows
    )
