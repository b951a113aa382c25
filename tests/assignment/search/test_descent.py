"""Coordinate descent on random problems: what it leaves no single move improves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from assignment.random_problems import random_problem
from meshwise.assignment.network import cost_network
from meshwise.assignment.problem import is_feasible, objective
from meshwise.assignment.search.descent import DescentWithin, improve_in_place


def moved(problem, choice, nodes):
    """All choices that differ at these nodes at most."""
    for new in itertools.product(*(range(len(problem.costs[n])) for n in nodes)):
        changed = list(choice)
        for n, c in zip(nodes, new, strict=True):
            changed[n] = c
        yield tuple(changed)


def starts(problem, seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(int(rng.integers(len(c))) for c in problem.costs)


@pytest.mark.parametrize("seed", range(20))
def test_without_rows_no_move_of_one_node_is_left(seed):
    problem = random_problem(seed, holes=seed % 2 == 1)
    for start in starts(problem, seed, 5):
        changed = np.array(start)
        improve_in_place(cost_network(problem), changed)
        found = tuple(changed.tolist())
        assert objective(problem, found) <= objective(problem, start)
        for n in range(len(problem.costs)):
            for other in moved(problem, found, (n,)):
                assert objective(problem, other) >= objective(problem, found)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_within_rows_no_move_of_one_node_or_of_a_pair_is_left(seed, holes):
    problem = random_problem(seed, rows=2, room=8, holes=holes)
    descent = DescentWithin(problem)
    pairs = [(pair.u, pair.v) for pair in problem.pairs]
    feasible = [start for start in starts(problem, seed, 300) if is_feasible(problem, start)]
    for start in feasible[:40]:
        found = descent.improved(start)
        assert is_feasible(problem, found)
        assert objective(problem, found) <= objective(problem, start)
        for nodes in [*((n,) for n in range(len(problem.costs))), *pairs]:
            for other in moved(problem, found, nodes):
                if is_feasible(problem, other):
                    assert objective(problem, other) >= objective(problem, found)


def test_some_of_these_problems_have_feasible_starts():
    problems = [random_problem(seed, rows=2, room=8) for seed in range(20)]
    found = [any(is_feasible(p, c) for c in starts(p, s, 300)) for s, p in enumerate(problems)]
    assert sum(found) > 15
