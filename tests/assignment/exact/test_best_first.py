"""Best-first search for the cheapest choice that fits, against all choices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.assignment.exact.best_first import (
    BestFirstEffort,
    cheaper_neighbour,
    cheapest_that_fits,
)
from meshwise.assignment.problem import PairCost, Problem

pytestmark = pytest.mark.usefixtures("compiled_kernels")

MUCH = BestFirstEffort(steps=10**6, questions=10**6, deadline=math.inf)


@st.composite
def problems(draw):
    """A problem of up to five nodes, a weight for each choice, and a limit of their sum."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    costs = [rng.integers(0, 8, n).astype(float) for n in sizes]
    for c in costs:
        c[1:][rng.random(len(c) - 1) < 0.2] = np.inf
    pairs = [
        PairCost(u=u, v=v, cost=rng.integers(0, 8, (sizes[u], sizes[v])).astype(float))
        for u, v in itertools.combinations(range(len(sizes)), 2)
        if rng.random() < 0.6
    ]
    weights = [rng.integers(0, 8, n).astype(float) for n in sizes]
    limit = float(draw(st.integers(0, 8 * len(sizes))))
    return Problem(costs=tuple(costs), pairs=tuple(pairs)), weights, limit


def fitting(problem, weights, limit):
    """All choices that fit, with their costs."""
    num_nodes = len(problem.costs)

    def along(table, *nodes):
        return np.expand_dims(table, [k for k in range(num_nodes) if k not in nodes])

    cost = sum(along(c, u) for u, c in enumerate(problem.costs))
    for pair in problem.pairs:
        u, v = pair.u, pair.v
        cost = cost + along(pair.cost if u < v else pair.cost.T, u, v)
    heavy = sum(along(w, u) for u, w in enumerate(weights))
    # Sums of whole numbers, exact in any order.
    return {
        tuple(choice): float(cost[tuple(choice)])
        for choice in np.argwhere(np.isfinite(cost) & (heavy <= limit)).tolist()
    }


def weight(weights, choice):
    return sum(float(w[i]) for w, i in zip(weights, choice, strict=True))


@given(problems(), st.booleans(), st.booleans())
def test_the_cheapest_of_all_choices_is_found(drawn, is_known, is_held):
    problem, weights, limit = drawn
    all_fitting = fitting(problem, weights, limit)
    known = max(all_fitting, key=all_fitting.__getitem__) if is_known and all_fitting else None
    found = cheapest_that_fits(
        problem,
        known,
        lambda choice: weight(weights, choice) <= limit,
        held=weights if is_held else [np.zeros_like(w) for w in weights],
        limit=limit,
        effort=MUCH,
    )
    assert found.proved
    if not all_fitting:
        assert found.choice is None
        assert found.bound == math.inf
        return
    assert found.choice in all_fitting
    assert all_fitting[found.choice] == min(all_fitting.values())
    assert found.bound == all_fitting[found.choice]


@given(problems(), st.integers(0, 20), st.integers(0, 4))
def test_a_search_cut_short_claims_no_more_than_is_true(drawn, steps, questions):
    problem, weights, limit = drawn
    all_fitting = fitting(problem, weights, limit)
    known = max(all_fitting, key=all_fitting.__getitem__) if all_fitting else None
    found = cheapest_that_fits(
        problem,
        known,
        lambda choice: weight(weights, choice) <= limit,
        held=weights,
        limit=limit,
        effort=BestFirstEffort(steps=steps, questions=questions, deadline=math.inf),
    )
    least = min(all_fitting.values(), default=math.inf)
    assert found.bound <= least * (1 + 1e-9) + 1e-12
    if found.proved:
        assert all_fitting.get(found.choice, math.inf) == least
    else:
        assert found.choice == known


@given(problems())
def test_a_neighbour_is_the_cheapest_of_two_changes(drawn):
    problem, weights, limit = drawn
    all_fitting = fitting(problem, weights, limit)
    for choice, cost in itertools.islice(all_fitting.items(), 5):
        near = [
            c
            for other, c in all_fitting.items()
            if sum(a != b for a, b in zip(choice, other, strict=True)) <= 2
        ]
        found = cheaper_neighbour(
            problem, choice, lambda c: weight(weights, c) <= limit, questions=10**6
        )
        if found is None:
            assert cost == min(near)
        else:
            assert all_fitting[found] == pytest.approx(min(near))
            assert all_fitting[found] < cost
