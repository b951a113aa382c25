"""The cheapest choice within a row: against brute force, and what is dropped on the way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.assignment.problem import PairCost, Problem, Row, is_feasible, objective, row_weight
from meshwise.assignment.search.mixture import Recombiner, best_subset
from meshwise.assignment.search.within_row import Within, edge_over

numbers = st.integers(-8, 8)
PARTS = st.lists(st.tuples(numbers, numbers), max_size=9)


def random_problem(seed: int) -> Problem:
    """A few nodes in a chain or a ring, some of them without weights, some pairs forbidden."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, rng.integers(2, 7))
    places = [(u, u + 1) for u in range(len(sizes) - 1) if rng.random() < 0.7]
    if len(sizes) > 2 and rng.random() < 0.5:
        places.append((0, len(sizes) - 1))
    pairs: list[PairCost] = []
    for u, v in places:
        cost = rng.integers(0, 9, (sizes[u], sizes[v])).astype(float)
        cost[rng.random(cost.shape) < 0.1] = np.inf
        pairs.append(PairCost(u=u, v=v, cost=cost))
    weights = [(u, rng.integers(0, 9, n).astype(float)) for u, n in enumerate(sizes)]
    shared = tuple(
        (u, v, rng.integers(0, 5, (sizes[u], sizes[v])).astype(float))
        for u, v in places
        if rng.random() < 0.4
    )
    nodes = tuple((u, w) for u, w in weights if rng.random() < 0.9)
    return Problem(
        costs=tuple(rng.integers(0, 20, n).astype(float) for n in sizes),
        pairs=tuple(pairs),
        rows=(Row(nodes=nodes, pairs=shared, limit=0.0, name="bytes"),),
    )


def with_limit(problem: Problem, limit: float) -> Problem:
    row = problem.rows[0]
    return Problem(
        costs=problem.costs,
        pairs=problem.pairs,
        rows=(Row(nodes=row.nodes, pairs=row.pairs, limit=limit),),
    )


def all_choices(problem: Problem) -> list[tuple[int, ...]]:
    every = itertools.product(*(range(len(c)) for c in problem.costs))
    return [c for c in every if math.isfinite(objective(problem, c))]


@given(PARTS, st.integers(-30, 30))
def test_labels_drop_only_what_is_dominated(parts: list[tuple[int, int]], room: int) -> None:
    subsets = itertools.product((False, True), repeat=len(parts))
    chosen = [[p for p, taken in zip(parts, s, strict=True) if taken] for s in subsets]
    fitting = [sum(c for _, c in some) for some in chosen if sum(w for w, _ in some) <= room]
    found = best_subset([(float(w), float(c)) for w, c in parts], float(room))
    if not fitting:
        assert found is None
        return
    assert found is not None
    assert sum(parts[k][0] for k in found) <= room
    assert sum(parts[k][1] for k in found) == min(fitting)


@given(st.integers(0, 10**6))
def test_a_mixture_of_two_is_the_best_of_all_that_mix_whole_parts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(seed)
    choices = all_choices(problem)
    if not choices:
        return
    one, other = (choices[int(k)] for k in rng.integers(0, len(choices), 2))
    limit = row_weight(problem.rows[0], one) + float(rng.integers(0, 6))
    mixer = Recombiner(problem)
    parts = list(mixer.parts(one, other))
    mixtures: list[tuple[int, ...]] = []
    for taken in itertools.product((False, True), repeat=len(parts)):
        nodes = {n for part, t in zip(parts, taken, strict=True) if t for n in part}
        mixtures.append(tuple((other if n in nodes else one)[n] for n in range(len(one))))
    bounded = with_limit(problem, limit)
    best = min(objective(bounded, m) for m in mixtures if is_feasible(bounded, m))
    found = mixer.best([one, other], limit)
    assert found is not None
    assert is_feasible(bounded, found)
    assert objective(bounded, found) <= best


def test_many_labels_are_thinned_and_what_is_found_still_fits() -> None:
    rng = np.random.default_rng(0)
    parts = [(float(w), -float(c)) for w, c in rng.uniform(1, 2, (40, 2))]
    room = 30.0
    found = best_subset(parts, room)
    assert found is not None
    assert sum(parts[k][0] for k in found) <= room
    # The best fractions of parts are no worse than the best parts.
    bound, left = 0.0, room
    for w, c in sorted(parts, key=lambda p: p[1] / p[0]):
        share = min(1.0, left / w)
        bound, left = bound + share * c, left - share * w
    assert sum(parts[k][1] for k in found) <= 0.99 * bound


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8, unique=True),
    st.integers(-9, 9),
)
def test_the_edge_over_a_limit_has_all_points_above(
    points: list[tuple[int, int]], limit: int
) -> None:
    edge = edge_over([(float(w), float(c)) for w, c in points], limit + 0.5)
    fitting = [c for w, c in points if w <= limit]
    heavy = [c for w, c in points if w > limit]
    if not fitting or not heavy or min(heavy) >= min(fitting):
        assert edge is None
        return
    assert edge is not None
    (w1, c1), (w2, c2) = edge
    assert w1 <= limit < w2
    assert c1 > c2
    assert all((c - c1) * (w2 - w1) >= (c2 - c1) * (w - w1) for w, c in points)


@pytest.mark.parametrize("seed", range(12))
def test_within_every_limit_of_small_problems_the_bound_and_the_cost_are_true(seed: int) -> None:
    problem = random_problem(seed)
    choices = all_choices(problem)
    within = Within(problem)
    assert within.is_possible == bool(choices)
    row = problem.rows[0]
    ratios: list[float] = []
    for limit in sorted({row_weight(row, c) for c in choices}):
        bounded = with_limit(problem, limit)
        best = min(objective(bounded, c) for c in choices if is_feasible(bounded, c))
        found = within.cheapest(limit)
        assert is_feasible(bounded, found.choice)
        assert found.cost == pytest.approx(objective(bounded, found.choice))
        assert best <= found.cost + 1e-9
        assert found.bound <= best + 1e-6 * (1 + best)
        ratios.append(found.cost / max(best, 1e-9))
    if choices:
        nothing = within.cheapest(min(row_weight(row, c) for c in choices) - 1)
        assert (nothing.status, nothing.choice) == ("infeasible", ())
        # What is found for one limit serves the others: few are off.
        assert np.mean(np.array(ratios) <= 1.01) >= 0.9, ratios


@pytest.mark.parametrize("seed", [0, 3, 5, 8])
def test_what_is_found_at_other_weights_serves_too(seed: int) -> None:
    problem = random_problem(seed)
    (row,) = problem.rows
    double = tuple((u, 2 * w) for u, w in row.nodes)
    other = Problem(
        costs=problem.costs,
        pairs=problem.pairs,
        rows=(Row(nodes=double, pairs=row.pairs, limit=0.0),),
    )
    choices = all_choices(problem)
    assert choices
    second = Within(other, like=Within(problem))
    for limit in sorted({row_weight(other.rows[0], c) for c in choices}):
        bounded = with_limit(other, limit)
        best = min(objective(bounded, c) for c in choices if is_feasible(bounded, c))
        found = second.cheapest(limit)
        assert is_feasible(bounded, found.choice)
        assert found.bound <= best + 1e-6 * (1 + best)
        assert best <= found.cost + 1e-9
