"""Finds a cheap plan that fits into memory.

What a plan really holds (`intra.memory`) follows XLA's own order and is no linear function of the
choices; what is live at the peak of one plan is.  So each plan that does not fit gives a row: the
bytes of what is live at its peak, bounded by the limit less what the heap adds to them.  Every
plan is judged by its true peak: one that does not fit is never returned.  If rows find none, the
plan of least peak (`intra.least_peak`) decides, which does not depend on the limit: what an error
names is enough.  Small problems are settled by enumeration, with the true peak alone.
"""

from __future__ import annotations

import dataclasses
import math
import time

from meshwise.intra.enumerate_plans import Effort, cheaper_neighbour, cheapest_that_fits
from meshwise.intra.judged import Answer, Judge
from meshwise.intra.least_peak import COST_SHARE, Least, least_peak, lightest
from meshwise.intra.memory import Peak
from meshwise.intra.problem import Row, Solution, objective, row_weight
from meshwise.intra.refusal import too_large
from meshwise.plan.decision import GraphDecision

_ROUNDS = 12
# After a plan fits, looser rows are tried so often.
_LOOSER = 3
# Rows are tightened by at least so much where the plan within them does not fit.
_TIGHTER = 0.97
# Limits of rows this close to each other are not told apart.
_CLOSE = 0.98
# If the plan nearest to rows that cannot be met needs so much more, looser rows do not help.
_HOPELESS = 1.15
# A plan that costs at most so much more than the bound will do.
_NEAR_BOUND = 1e-3
# Shares of the cost beside bytes that are tried to make the smallest plan cheaper, and the largest.
_SHARES = 5
_MOST_SHARE = 100.0
# Enumeration is tried up to this many nodes, partial choices, and operators that judging looks at.
_SMALL_NODES = 24
_MAX_STEPS = 1_000_000
_MAX_QUESTIONS = 30_000
_QUESTION_WORK = 300_000
# After it gives up, so many neighbours of the best plan are judged at a time.
_MAX_NEIGHBOURS = 1_000

# A cost counts as its bound if no more than rounding lies between.
_SLACK = 1e-9


def fit(judge: Judge, free: Answer, *, limit: int) -> Answer:
    """A cheap plan that fits.

    Args:
        judge: What is searched.
        free: The answer without a limit, which does not fit.
        limit: Bytes of one device.

    Raises:
        TooLargeError: no plan was found that fits.
    """
    if sum(float(held.min()) for held in judge.input_bytes()) > limit:
        # Not even the inputs fit.
        raise too_large(limit, least_peak(judge, free).answer.peak, is_proved=True)
    found, least = _by_rows(judge, free, limit), None
    if found is None:
        least = least_peak(judge, free)
        if least.answer.num_bytes <= limit:
            found = _cheaper(judge, free, least, limit)
    bound = max(free.solution.bound, 0.0)
    if len(judge.problem.costs) <= _SMALL_NODES:
        found, proved = _by_enumeration(judge, found, limit)
        bound = max(bound, proved)
    if found is None:
        assert least is not None
        raise too_large(limit, least.answer.peak, is_proved=bound == math.inf)
    cost = found.solution.cost
    exact = bound >= cost * (1 - _SLACK)
    late = time.monotonic() > judge.deadline
    solution = dataclasses.replace(
        found.solution,
        bound=min(bound, cost),
        status="optimal" if exact else "time limit" if late else "bounded",
    )
    return dataclasses.replace(found, solution=solution)


def _by_rows(judge: Judge, free: Answer, limit: int) -> Answer | None:
    """The best plan that fits among those that rows lead to.

    All rows are scaled together: `too_tight` and `too_loose` are the scales between which the
    search goes on.
    """
    # The row of what is live at a peak bounds as great a part of the limit as it is of that peak.
    rows = [_scaled_row(judge, free, limit)]
    best: Answer | None = None
    scale, too_tight, too_loose = 1.0, 0.0, math.inf
    looser = _LOOSER
    for _ in range(_ROUNDS):
        if time.monotonic() > judge.deadline:
            break
        scaled = [dataclasses.replace(row, limit=row.limit * scale) for row in rows]
        solution = judge.solve(scaled)
        choice = solution.choice or solution.nearest
        if not choice:
            break
        answer = judge.answer(choice)
        if answer.num_bytes <= limit:
            best = answer if best is None or _is_cheaper(answer, best) else best
            near = best.solution.cost <= free.solution.bound * (1 + _NEAR_BOUND)
            if near or looser == 0 or not solution.choice:
                break
            looser -= 1
            wider = limit / answer.num_bytes
            too_tight = max(too_tight, scale)
            scale = min(math.sqrt(scale * too_loose), scale * max(wider, 1 / _CLOSE))
        elif not solution.choice:
            # Rows are no more than near the truth: a little looser may fit.
            if answer.num_bytes > _HOPELESS * limit:
                break
            too_tight = max(too_tight, scale)
            scale = min(math.sqrt(scale * too_loose), scale / _CLOSE)
        else:
            row = _scaled_row(judge, answer, limit)
            is_new = all(row.name != other.name for other in rows)
            if is_new and row_weight(row, choice) > row.limit * scale:
                rows.append(row)
                continue
            if best is not None:
                break
            too_loose = min(too_loose, scale)
            scale = max(
                scale * min(_TIGHTER, limit / answer.num_bytes), math.sqrt(too_tight * too_loose)
            )
        if too_tight >= _CLOSE * too_loose:
            break
    return best


def _scaled_row(judge: Judge, answer: Answer, limit: int) -> Row:
    """What is live at the peak of a plan, within its part of the limit."""
    row = judge.row_of(answer.peak)
    part = row_weight(row, answer.solution.choice) / answer.num_bytes
    return dataclasses.replace(row, limit=limit * part)


def _is_cheaper(one: Answer, other: Answer) -> bool:
    return one.solution.cost < other.solution.cost


def _cheaper(judge: Judge, free: Answer, least: Least, limit: int) -> Answer:
    """The plan of least peak, which fits, or a cheaper one: costs weigh more while it fits."""
    best, low, high = least.answer, COST_SHARE, _MOST_SHARE
    for _ in range(_SHARES):
        share = math.sqrt(low * high)
        choice = lightest(judge, least, free, share)
        if not choice:
            break
        answer = judge.answer(choice)
        if answer.num_bytes > limit:
            high = share
            continue
        low = share
        best = answer if _is_cheaper(answer, best) else best
    return best


def _by_enumeration(judge: Judge, found: Answer | None, limit: int) -> tuple[Answer | None, float]:
    """A plan that fits, the cheapest if the search comes to its end, and a lower bound."""
    judged: dict[tuple[int, ...], tuple[GraphDecision, Peak]] = {}

    def fits(choice: tuple[int, ...]) -> bool:
        trial = judge.of_choice(choice)
        if trial[1].num_bytes > limit:
            return False
        judged[choice] = trial
        return True

    questions = min(_MAX_QUESTIONS, _QUESTION_WORK // max(judge.num_operators, 1))
    known = found.solution.choice if found is not None else None
    cheapest = cheapest_that_fits(
        judge.problem,
        known,
        fits,
        held=judge.input_bytes(),
        limit=limit,
        effort=Effort(steps=_MAX_STEPS, questions=questions, deadline=judge.deadline),
    )
    best = cheapest.choice
    if not cheapest.proved and best is not None:
        near: tuple[int, ...] | None = best
        while near is not None and time.monotonic() < judge.deadline:
            best = near
            near = cheaper_neighbour(
                judge.problem, best, fits, questions=min(_MAX_NEIGHBOURS, questions)
            )
    if best is None or best == known:
        return found, cheapest.bound
    cost = objective(judge.problem, best)
    solution = Solution(choice=best, cost=cost, bound=0.0, status="", num_left=0)
    return Answer(solution=solution, decision=judged[best][0], peak=judged[best][1]), cheapest.bound
