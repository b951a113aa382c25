"""Reductions and bounds of a problem without rows, in turn while they help each other.

They prove the answer of many problems, and take a small part of the time of a proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.assignment.bounds.messages import Messages
from meshwise.assignment.bounds.relaxation import relax
from meshwise.assignment.network import Network
from meshwise.assignment.problem import Problem, Solution, is_feasible, objective
from meshwise.assignment.reductions.reduction import (
    Reduction,
    expanded,
    reduce_network,
    reduce_problem,
)
from meshwise.kernels.arrays import Ints

# Reductions and bounds take turns while each turn removes a good part of the choices.
_ROUNDS = 8
_PASSES = 60
_SHRINK = 0.9
# A bound this close to the cost proves it, up to the rounding of sums.
EXACT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """What is known of a problem after reductions and bounds.

    Attributes:
        problem: The problem.
        chain: Its reductions, each of the network that the one before left.
        choice: The best choice met of the last network; None if none was met.
        bound: No choice of the problem costs less.
        is_settled: Whether `choice` is the best, or there is none.
    """

    problem: Problem
    chain: tuple[Reduction, ...]
    choice: Ints | None
    bound: float
    is_settled: bool

    @property
    def network(self) -> Network:
        """What is left of the problem."""
        return self.chain[-1].network


def relaxed(problem: Problem, best: tuple[int, ...] | None = None) -> Relaxed:
    """Reduce and bound in turn.

    Args:
        problem: A problem without rows.
        best: A choice to start from.
    """
    first = None if best is None else np.array(best, np.int64)
    return _in_turn(problem, [reduce_problem(problem)], first, -math.inf)


def relaxed_from(problem: Problem, network: Network, messages: Messages) -> Relaxed:
    """Bound and reduce in turn, starting from known messages.

    Args:
        problem: A problem without rows; some choices of some nodes are impossible.
        network: The same problem, where these choices are only very dear.
        messages: Of the network; they change.
    """
    found = relax(network, None, passes=_PASSES, messages=messages)
    if found.choice is None or not is_feasible(problem, tuple(found.choice.tolist())):
        return relaxed(problem)
    reduction = reduce_network(found.network, found.choices_left())
    return _in_turn(problem, [reduction], found.choice, found.bound)


def _in_turn(problem: Problem, chain: list[Reduction], first: Ints | None, bound: float) -> Relaxed:
    """Go on until the answer is proved or little more can be removed.

    Args:
        problem: The problem.
        chain: How it was reduced so far.
        first: A choice of what the last reduction began with; None if none is known.
        bound: No choice of the problem costs less.
    """
    is_settled = False
    for _ in range(_ROUNDS):
        reduction = chain[-1]
        if reduction.infeasible:
            first, bound, is_settled = None, math.inf, True
            break
        network = reduction.network
        first = reduction.restrict(first) if first is not None else None
        if not len(network.size):
            first, is_settled = np.zeros(0, np.int64), True
            break
        found = relax(network, first, passes=_PASSES)
        first, bound = found.choice, max(bound, found.bound)
        if first is not None and bound >= found.cost * (1 - EXACT):
            is_settled = True
            break
        keep = found.choices_left()
        if keep.sum() > _SHRINK * len(keep):
            break
        chain.append(reduce_network(network, keep))
    return Relaxed(
        problem=problem, chain=tuple(chain), choice=first, bound=bound, is_settled=is_settled
    )


def infeasible() -> Solution:
    """Return the answer that there is none."""
    return Solution(choice=(), cost=math.inf, bound=math.inf, status="infeasible")


def answer(
    problem: Problem,
    chain: Sequence[Reduction],
    choice: Ints,
    best: tuple[int, ...] | None,
    *,
    status: str,
    bound: float = -math.inf,
) -> Solution:
    """Extend a choice of the last reduction to the whole problem.

    Args:
        problem: The problem.
        chain: Its reductions.
        choice: One choice for each node that they leave.
        best: Another choice of the problem; the cheaper one is taken.
        status: Of the answer.
        bound: No choice costs less.
    """
    full: tuple[int, ...] = tuple(expanded(chain, choice).tolist())
    cost = objective(problem, full)
    if best is not None and objective(problem, best) < cost:
        full, cost = best, objective(problem, best)
    return Solution(
        choice=full,
        cost=cost,
        bound=cost if status == "optimal" else min(bound, cost),
        status=status,
    )
