"""The solver's parts on random problems, against enumeration."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from assignment.random_problems import random_problem
from intra.full_formulation import solve_ilp
from meshwise.assignment.answer_check import check_solution, objective_fs
from meshwise.assignment.bounds.dual_ascent import ascend
from meshwise.assignment.bounds.row_prices import price_rows
from meshwise.assignment.problem import PairCost, Problem, is_feasible, objective
from meshwise.assignment.reductions.problem_reduction import reduce_problem
from meshwise.assignment.solve import solve
from meshwise.errors import SolverError


def best_cost(problem):
    every = itertools.product(*(range(len(c)) for c in problem.costs))
    return min((objective(problem, c) for c in every if is_feasible(problem, c)), default=np.inf)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_solve_finds_the_optimum(seed, rows, holes):
    problem = random_problem(seed, rows=rows, holes=holes)
    wanted = best_cost(problem)
    found = solve(problem)
    if np.isinf(wanted):
        assert found.status == "infeasible"
        return
    assert found.status == "optimal"
    assert found.cost == pytest.approx(wanted, abs=1e-9)
    assert is_feasible(problem, found.choice)
    check_solution(problem, found)


@pytest.mark.parametrize("seed", range(15))
def test_the_ilp_alone_finds_the_optimum(seed):
    problem = random_problem(seed, rows=1)
    wanted = best_cost(problem)
    found = solve_ilp(problem, incumbent=None, time_limit_s=20.0, seed=0)
    assert found.cost == pytest.approx(wanted, abs=1e-9) or (np.isinf(wanted) and not found.choice)


@pytest.mark.parametrize("seed", range(30))
def test_reductions_keep_the_optimum_and_extend_every_answer(seed):
    problem = random_problem(seed, holes=seed % 2 == 1)
    reduction = reduce_problem(problem)
    wanted = best_cost(problem)
    if reduction.infeasible:
        assert np.isinf(wanted)
        return
    small = reduction.problem
    every = itertools.product(*(range(len(c)) for c in small.costs))
    best = min(every, key=lambda c: objective(small, c))
    assert objective(small, best) + reduction.constant == pytest.approx(wanted)
    assert objective(problem, reduction.expand(best)) == pytest.approx(wanted)


@pytest.mark.parametrize("seed", range(30))
def test_dual_ascent_bounds_and_keeps_an_optimum(seed):
    problem = random_problem(seed)
    found = ascend(problem, None, passes=30)
    wanted = best_cost(problem)
    assert found.bound <= wanted + 1e-9
    assert found.cost >= wanted
    kept = itertools.product(*(np.flatnonzero(mask).tolist() for mask in found.keep))
    assert min(objective(problem, c) for c in kept) == pytest.approx(wanted)


@pytest.mark.parametrize("seed", range(30))
def test_prices_bound_the_optimum(seed):
    problem = random_problem(seed, rows=1)
    wanted = best_cost(problem)
    found = price_rows(problem, None)
    assert found.bound <= wanted + 1e-9
    if found.choice is not None:
        assert is_feasible(problem, found.choice)
        assert found.cost >= wanted - 1e-9


def test_the_checker_is_exact_and_catches_lies():
    problem = random_problem(3, rows=1)
    found = solve(problem)
    assert objective_fs(problem, found.choice) == int(found.cost) * 10**15
    with pytest.raises(SolverError, match="claims"):
        check_solution(problem, dataclasses.replace(found, cost=found.cost - 0.001, bound=0.0))
    with pytest.raises(SolverError, match="bound"):
        check_solution(problem, dataclasses.replace(found, bound=found.cost + 1.0))
    narrow = dataclasses.replace(problem.rows[0], limit=-1.0)
    with pytest.raises(SolverError, match="breaks the row"):
        check_solution(dataclasses.replace(problem, rows=(narrow,)), found)


def test_an_incumbent_is_never_made_worse():
    problem = random_problem(5)
    best = solve(problem)
    again = solve(problem, incumbents=(best.choice,))
    assert again.cost == best.cost


@pytest.mark.usefixtures("compiled_kernels")
def test_a_large_problem_finds_the_optimum():
    """A ring of nodes of many choices: its optimum is the cheapest closed walk."""
    rng = np.random.default_rng(0)
    count, size = 18, 500
    costs = tuple(rng.random(size) for _ in range(count))
    matrices = [rng.random((size, size)) for _ in range(count)]
    pairs = [PairCost(u=u, v=u + 1, cost=matrices[u]) for u in range(count - 1)]
    pairs.append(PairCost(u=0, v=count - 1, cost=matrices[-1]))
    problem = Problem(costs=costs, pairs=tuple(pairs))
    # walk[i, j]: the cheapest way from choice i of the first node to choice j of the present one.
    walk = np.where(np.eye(size, dtype=bool), costs[0][:, None], np.inf)
    for v in range(1, count):
        step = matrices[v - 1] + costs[v]
        walk = np.stack([(row[:, None] + step).min(axis=0) for row in walk])
    wanted = (walk + matrices[-1]).min()
    found = solve(problem, time_limit_s=600)
    assert found.status == "optimal"
    assert found.cost == pytest.approx(wanted, abs=1e-9)
    assert found.bound <= found.cost
