"""Search over the limits of the bottlenecks: the least of fill + load + once, with a bound.

G(l, o) is the least fill of a solution whose stages all have a load of at most l and a time once a
step of at most o.  It falls as the limits rise, so in a box of solutions with load in [a, b] and
once in [c, d] none is below G(b, d) + a + c.  A box is evaluated at its upper corner.  The solution
found there, of load l and once o, beats all others above l and o: what is left are those with a
smaller once, and those with a smaller load, which are cut in two at the middle of the larger range.
A box whose upper corner gives nothing below the best is done.  Each evaluation thus finds a new
corner of G, of which there are finitely many, or ends a box.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from meshwise.inter.stages.stage_problem import StageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStages:
    """The best solution within limits.

    Attributes:
        fill_s: Fill and transfers.
        load_s: The largest load.
        once_s: The largest time once a step.
        total_s: T.
        stages: The solution.
    """

    fill_s: float
    load_s: float
    once_s: float
    total_s: float
    stages: tuple[StageSpan, ...]


# (limit of load, limit of once, cost of fill above which nothing is wanted) -> the best, if any.
Evaluate: TypeAlias = Callable[[float, float, float], FoundStages | None]
# Least and largest load, least and largest once.
_Box: TypeAlias = tuple[float, float, float, float]
# Clearly below a value: the kernels let what equals a limit to a part in 1e12 pass.
_BELOW = 1.0 - 1e-11


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best solution, and what is proved.

    Attributes:
        best: None if there is none, or none that is wanted.
        bound_s: No solution is cheaper.
    """

    best: FoundStages | None
    bound_s: float


def search_boxes(
    evaluate: Evaluate, whole: _Box, tolerance_s: float, at_most: float = math.inf
) -> SearchResult:
    """The best solution, at most `tolerance_s` above the optimum.

    Args:
        evaluate: G with its solution.
        whole: Least and largest load that a stage can have, and the same of its once.
        tolerance_s: Boxes that promise less than this are left.
        at_most: A solution is known that takes so long; only better ones are wanted.
    """
    start = evaluate(math.inf, math.inf, at_most - whole[0] - whole[2])
    if start is None:
        return SearchResult(best=None, bound_s=at_most)
    best = start if start.total_s < at_most else None
    goal = min(start.total_s, at_most)
    bound = goal
    # The counter keeps equal bounds in a fixed order.
    heap: list[tuple[float, int, _Box]] = []

    def push(fill: float, boxes: list[_Box]) -> None:
        for box in boxes:
            heapq.heappush(heap, (fill + box[0] + box[2], next(counter), box))

    counter = itertools.count()
    push(start.fill_s, _rest(whole, start))
    while heap:
        bound, _, box = heapq.heappop(heap)
        if bound >= goal - tolerance_s:
            break
        found = evaluate(box[1], box[3], goal - box[0] - box[2])
        if found is not None:
            best = found if found.total_s < goal else best
            goal = min(goal, found.total_s)
            push(found.fill_s, _rest(box, found))
    else:
        bound = goal
    return SearchResult(best=best, bound_s=min(bound, goal))


def _rest(box: _Box, found: FoundStages) -> list[_Box]:
    """The box without what lies above the found load and once, its larger part cut in two."""
    a, b, c, d = box
    boxes: list[_Box] = []
    if found.once_s > c and found.load_s <= b:
        boxes.append((max(a, found.load_s), b, c, min(d, found.once_s * _BELOW)))
    if found.load_s > a:
        b = min(b, found.load_s * _BELOW)
        if d - c > b - a:
            middle = (c + d) / 2
            boxes += [(a, b, c, middle), (a, b, middle, d)]
        else:
            middle = (a + b) / 2
            boxes += [(a, middle, c, d), (middle, b, c, d)]
    return [x for x in boxes if x[0] <= x[1] and x[2] <= x[3]]
