"""The plan that holds least, as nearly as a counted amount of work finds it.

The true peak of a plan follows XLA's order and is no linear function of the choices, but the bytes
of what is live at one plan's peak are.  So the largest of several such rows is made small: each
round takes the choice of least weighted sum of rows, judges it by its true peak, and adds what is
live there as one more row; rows that are high for the choice gain weight.  Nothing here depends on
a limit of memory, so that what is found for one limit is found for all.

Source: weights by multiplication (Freund and Schapire 1999, "Adaptive game playing").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwise.assignment.bounds.row_prices import priced_problem
from meshwise.assignment.problem import Problem, Row, objective, row_weight
from meshwise.intra.limit.judged import Judge, JudgedChoice

_ROUNDS = 12
# Rounds without a smaller peak after which no more are tried.
_PATIENCE = 5
# Weights of rows change by this power of what the choice weighs in them.
_POWER = 4
# What all costs together weigh beside the bytes: they decide between choices of about equal bytes.
COST_SHARE = 1e-2
# Operators that the descent may look at, over all choices that it judges, and such choices.
_DESCENT_WORK = 6_000
_MOST_JUDGED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The plan of least peak, and what led to it.

    Attributes:
        answer: The plan.
        problem: The problem with what is live at the peaks that were met, as rows.
        weights: Of the rows.
    """

    answer: JudgedChoice
    problem: Problem
    weights: tuple[float, ...]


def least_peak(judge: Judge, free: JudgedChoice) -> Least:
    """The plan of least peak that was met.

    Args:
        judge: What is searched.
        free: The cheapest plan, where the search begins.
    """
    found = _by_weights(judge, free)
    work = min(_DESCENT_WORK // max(judge.num_operators, 1), _MOST_JUDGED)
    return replace(found, answer=_descended(judge, found.answer, work))


def lightest(judge: Judge, least: Least, free: JudgedChoice, cost_share: float) -> tuple[int, ...]:
    """The choice of about least weighted bytes and costs; empty if there is none.

    Args:
        judge: What is searched.
        least: Whose rows and weights count.
        free: Its cost and its bytes are the units.
        cost_share: What costs weigh beside bytes.
    """
    unit = _unit(free, least.answer)
    return _lightest(judge, least.problem.rows, least.weights, unit, cost_share)


def _smaller(best: JudgedChoice, other: JudgedChoice) -> JudgedChoice:
    """The one of less peak; of equal ones the cheaper one."""

    def key(answer: JudgedChoice) -> tuple[int, float]:
        return answer.num_bytes, answer.solution.cost

    return other if key(other) < key(best) else best


def _by_weights(judge: Judge, free: JudgedChoice) -> Least:
    """The plan of least peak among those that weighted rows give."""
    rows = [judge.row_of(free.peak)]
    weights = [1.0]
    best, with_weights = free, weights
    known: dict[tuple[int, ...], JudgedChoice] = {free.solution.choice: free}
    idle = 0
    for turn in range(_ROUNDS):
        # First bytes alone: they say what holding less costs, which may be far more than the step.
        share = COST_SHARE if turn else 0.0
        choice = _lightest(judge, rows, weights, _unit(free, best), share)
        if not choice or idle == _PATIENCE or judge.is_late:
            break
        answer = known[choice] if choice in known else judge.answer(choice)
        known[choice] = answer
        idle += 1
        if _smaller(best, answer) is answer:
            idle = 0 if answer.num_bytes < best.num_bytes else idle
            best, with_weights = answer, weights
        weighs = [row_weight(row, choice) for row in rows]
        highest = max(*weighs, 1.0)
        weights = [w * (x / highest) ** _POWER for w, x in zip(weights, weighs, strict=True)]
        row = judge.row_of(answer.peak)
        if all(row.name != other.name for other in rows):
            rows.append(row)
            weights.append(max(weights))
        total = sum(weights)
        if not total > 0:
            break
        weights = [w / total for w in weights]
    problem = replace(judge.problem, rows=tuple(rows[: len(with_weights)]))
    return Least(answer=best, problem=problem, weights=tuple(with_weights))


def _unit(free: JudgedChoice, least: JudgedChoice) -> float:
    """Bytes that weigh as much as a second: those of a plan over what the dearer one costs."""
    cost = max(free.solution.cost, least.solution.cost)
    return free.num_bytes / cost if cost > 0 else 1.0


def _lightest(
    judge: Judge, rows: Sequence[Row], weights: Sequence[float], unit: float, cost_share: float
) -> tuple[int, ...]:
    """The choice of about least weighted bytes and costs; empty if there is none."""
    problem = replace(judge.problem, rows=tuple(rows))
    priced = priced_problem(problem, weights, cost_share * unit)
    return judge.solve_free(priced)


def _descended(judge: Judge, start: JudgedChoice, work: int) -> JudgedChoice:
    """A plan that no change of one node makes smaller, or where the work ended.

    Args:
        judge: What is searched.
        start: Where it begins.
        work: So many choices may be judged.
    """
    best = start
    while True:
        for other in _lighter_neighbours(judge, best):
            if not work:
                return best
            work -= 1
            trial = judge.answer(other)
            if trial.num_bytes < best.num_bytes:
                best = trial
                break
        else:
            return best


def _lighter_neighbours(judge: Judge, answer: JudgedChoice) -> Iterator[tuple[int, ...]]:
    """Choices that differ in one node and are lighter at the peak of a plan, the lightest first."""
    choice, row = answer.solution.choice, judge.row_of(answer.peak)
    weights = {u: w.copy() for u, w in row.nodes}
    for u, v, both in row.pairs:
        for node, part in ((u, both[:, choice[v]]), (v, both[choice[u], :])):
            weights[node] = weights[node] + part if node in weights else part.copy()
    lighter = [
        (float(w[i] - w[choice[u]]), u, int(i))
        for u, w in weights.items()
        for i in np.flatnonzero(w < w[choice[u]])
    ]
    for _, u, i in sorted(lighter):
        other = (*choice[:u], i, *choice[u + 1 :])
        if np.isfinite(objective(judge.problem, other)):
            yield other
