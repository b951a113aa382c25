"""Choices of small problems, cheapest first, until one fits.

Whether a plan fits is asked of a function, so that it may be anything; dual ascent gives the
bounds that keep the search small.

Source: best-first search with an admissible bound (Hart, Nilsson and Raphael 1968, A*).
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.assignment.bounds.messages import no_messages, sweep
from meshwise.assignment.problem import Array, Problem, objective
from meshwise.assignment.reductions.reduction import Reduction, reduce_problem
from meshwise.kernels.compiler import BACKWARD, FORWARD

_PASSES = 80
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFirstEffort:
    """How much a search may do.

    Attributes:
        steps: Partial choices that it looks at.
        questions: Choices of all nodes of which it asks whether they fit.
        deadline: Moment of `time.monotonic` at which it gives up; infinite for none.
    """

    steps: int
    questions: int
    deadline: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheapest:
    """What a search found.

    Attributes:
        choice: A choice that fits; None if none was met.
        bound: No choice that fits costs less; infinite if it is certain that none fits.
        proved: Whether no choice that fits is cheaper than `choice`.
    """

    choice: tuple[int, ...] | None
    bound: float
    proved: bool


def cheapest_that_fits(
    problem: Problem,
    known: tuple[int, ...] | None,
    fits: Callable[[tuple[int, ...]], bool],
    *,
    held: Sequence[Array],
    limit: float,
    effort: BestFirstEffort,
) -> Cheapest:
    """Return the cheapest choice for which `fits` holds.

    It is `known` if none is cheaper or the effort ends.

    Args:
        problem: Without rows; pairs with u < v, each at most once.
        known: A choice that fits.
        fits: Whether a choice fits.
        held: For each node and choice what certainly counts against `limit`.
        limit: No choice fits that holds more.
        effort: When to give up.

    Returns:
        The choice, a bound, and whether it is proved.
    """
    known_cost = objective(problem, known) if known is not None else np.inf
    below = known_cost * (1 - _SLACK)
    asked, bound = 0, -np.inf
    for step, (cost, choice) in enumerate(_cheapest_first(problem, held, limit)):
        bound = max(bound, cost)
        if cost >= below:
            break
        if step >= effort.steps:
            return Cheapest(choice=known, bound=bound, proved=False)
        if len(choice) < len(problem.costs):
            continue
        if not objective(problem, choice) < below:
            continue
        if asked == effort.questions or time.monotonic() > effort.deadline:
            return Cheapest(choice=known, bound=bound, proved=False)
        asked += 1
        if fits(choice):
            return Cheapest(choice=choice, bound=objective(problem, choice), proved=True)
    return Cheapest(choice=known, bound=known_cost, proved=True)


def _cheapest_first(
    problem: Problem, held: Sequence[Array], limit: float
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Return choices of the first nodes with a lower bound of what they lead to, in its order."""
    reduction = reduce_problem(problem, keep=range(len(problem.costs)))
    if reduction.infeasible:
        return
    bound, nodes, before = _moved(reduction)
    count = len(nodes)
    left = [reduction.choices(u) for u in range(count)]
    numbers = [choices.tolist() for choices in left]
    held = [weights[choices] for weights, choices in zip(held, left, strict=True)]
    at_least = [0.0] * (count + 1)
    for u in reversed(range(count)):
        at_least[u] = at_least[u + 1] + float(held[u].min())
    # Of equal bounds the longer choice first.
    heap: list[tuple[float, int, tuple[int, ...], float]] = [(0.0, 0, (), 0.0)]
    while heap:
        excess, _, choice, holds = heapq.heappop(heap)
        yield bound + excess, tuple(of[i] for of, i in zip(numbers, choice, strict=False))
        u = len(choice)
        if u == count:
            continue
        total = nodes[u] + excess
        for v, matrix in before[u]:
            total = total + matrix[choice[v]]
        for i, (more, stays) in enumerate(zip(total.tolist(), held[u].tolist(), strict=True)):
            if holds + stays + at_least[u + 1] <= limit:
                heapq.heappush(heap, (more, -u, (*choice, i), holds + stays))


def _moved(reduction: Reduction) -> tuple[float, list[Array], list[list[tuple[int, Array]]]]:
    """Return a bound, and what choices of nodes and of pairs (by the later node) lie above it."""
    network = reduction.network
    held = no_messages(network)
    for _ in range(_PASSES):
        sweep(FORWARD, network, held)
        sweep(BACKWARD, network, held)
    bound = network.constant
    nodes: list[Array] = []
    for u in range(len(network.size)):
        values = held.node[network.first_choice[u] : network.first_choice[u + 1]]
        bound += float(values.min())
        nodes.append(values - values.min())
    before: list[list[tuple[int, Array]]] = [[] for _ in nodes]
    for e, (u, v) in enumerate(zip(network.u.tolist(), network.v.tolist(), strict=True)):
        rows, width = int(network.size[u]), int(network.size[v])
        first, at_u, at_v = network.first_entry[e], network.first_u[e], network.first_v[e]
        matrix = network.matrices[first : first + rows * width].reshape(rows, width)
        matrix = matrix + held.at_u[at_u : at_u + rows, None] + held.at_v[at_v : at_v + width]
        bound += float(matrix.min())
        before[int(v)].append((int(u), matrix - matrix.min()))
    return bound, nodes, before


def cheaper_neighbour(
    problem: Problem,
    choice: tuple[int, ...],
    fits: Callable[[tuple[int, ...]], bool],
    *,
    questions: int,
) -> tuple[int, ...] | None:
    """Return the cheapest choice that differs in one or two nodes, costs less and fits.

    Args:
        problem: Without rows.
        choice: Where to look around.
        fits: Whether a choice fits.
        questions: Largest number of choices that are asked about.

    Returns:
        The choice; None if there is none.
    """
    cost = objective(problem, choice)
    others = [
        (u, i)
        for u, costs in enumerate(problem.costs)
        for i in np.flatnonzero(np.isfinite(costs)).tolist()
        if i != choice[u]
    ]
    changes = itertools.chain(
        ((one,) for one in others),
        (pair for pair in itertools.combinations(others, 2) if pair[0][0] != pair[1][0]),
    )
    cheaper: list[tuple[float, tuple[int, ...]]] = []
    for change in changes:
        changed = list(choice)
        for u, i in change:
            changed[u] = i
        less = objective(problem, changed)
        if less < cost * (1 - _SLACK):
            cheaper.append((less, tuple(changed)))
    cheaper.sort()
    return next((found for _, found in cheaper[:questions] if fits(found)), None)
