"""The solver's parts on random problems, against enumeration."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from assignment.problems import proved
from assignment.random_problems import random_problem
from meshwise.assignment.bounds.conditional import ConditionalBounds
from meshwise.assignment.bounds.relaxation import relax
from meshwise.assignment.bounds.row_prices import price_row
from meshwise.assignment.network import problem_of
from meshwise.assignment.problem import PairCost, Problem, is_feasible, objective
from meshwise.assignment.reductions.reduction import reduce_problem
from meshwise.assignment.solve import solve, solve_relaxed
from meshwise.assignment.validity import check_solution
from meshwise.errors import SolverError
from oracle.full_formulation import solve_ilp


def best_cost(problem):
    every = itertools.product(*(range(len(c)) for c in problem.costs))
    return min((objective(problem, c) for c in every if is_feasible(problem, c)), default=np.inf)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_the_optimum_is_found_and_proved(seed, rows, holes):
    problem = random_problem(seed, rows=rows, holes=holes)
    wanted = best_cost(problem)
    found = proved(problem)
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
@pytest.mark.parametrize("keep", [(), (0, 2)])
def test_reductions_keep_the_optimum_and_extend_every_answer(seed, keep):
    problem = random_problem(seed, holes=seed % 2 == 1)
    reduction = reduce_problem(problem, keep=keep)
    wanted = best_cost(problem)
    if reduction.infeasible:
        assert np.isinf(wanted)
        return
    assert set(keep) <= set(reduction.nodes.tolist())
    small = problem_of(reduction.network)
    every = itertools.product(*(range(len(c)) for c in small.costs))
    best = min(every, key=lambda c: objective(small, c))
    assert objective(small, best) + reduction.network.constant == pytest.approx(wanted)
    full = reduction.expand(np.array(best, np.int64))
    assert objective(problem, full) == pytest.approx(wanted)
    assert reduction.restrict(full).tolist() == list(best)


@pytest.mark.parametrize("seed", range(20))
def test_of_equal_choices_the_first_stays(seed):
    """Whatever the neighbours do: each node has each of its choices twice."""
    problem = random_problem(seed)
    twice = Problem(
        costs=tuple(np.tile(c, 2) for c in problem.costs),
        pairs=tuple(PairCost(u=p.u, v=p.v, cost=np.tile(p.cost, (2, 2))) for p in problem.pairs),
    )
    assert solve(twice).choice == solve(problem).choice


@pytest.mark.parametrize("seed", range(20))
def test_bounds_of_fixed_nodes(seed):
    problem = random_problem(seed, holes=seed % 2 == 1)
    nodes = (0, len(problem.costs) - 1)
    bounds = ConditionalBounds(problem, nodes)
    rough = bounds.of_all_pairs()
    for a, b in itertools.product(*(range(len(problem.costs[n])) for n in nodes)):
        costs = list(problem.costs)
        for n, c in zip(nodes, (a, b), strict=True):
            costs[n] = np.where(np.arange(len(costs[n])) == c, costs[n], np.inf)
        wanted = best_cost(dataclasses.replace(problem, costs=tuple(costs)))
        if np.isinf(rough[a, b]):
            assert np.isinf(wanted)
            continue
        low, choice = bounds.of_pair(a, b)
        assert low <= wanted + 1e-9
        if choice is not None and (choice[nodes[0]], choice[nodes[1]]) == (a, b):
            assert objective(problem, choice) == pytest.approx(wanted)
        left = bounds.relaxed(a, b)
        assert left.bound + bounds.constant <= wanted + 1e-9
        for found in (solve(bounds.fixed(a, b)), solve_relaxed(left)):
            if found.choice:
                assert objective(problem, bounds.expand(found.choice)) == pytest.approx(wanted)
            else:
                assert np.isinf(wanted)


@pytest.mark.parametrize("seed", range(30))
def test_messages_bound_and_keep_an_optimum(seed):
    problem = random_problem(seed, holes=seed % 2 == 1)
    reduction = reduce_problem(problem, keep=range(len(problem.costs)))
    if reduction.infeasible:
        assert np.isinf(best_cost(problem))
        return
    found = relax(reduction.network, None, passes=30)
    wanted = best_cost(problem)
    assert found.bound <= wanted + 1e-9
    assert found.cost >= wanted - 1e-9
    small = problem_of(reduction.network)
    masks = np.split(found.choices_left(), reduction.network.first_choice[1:-1])
    kept = itertools.product(*(np.flatnonzero(mask).tolist() for mask in masks))
    best = min(objective(small, c) for c in kept) + reduction.network.constant
    assert best == pytest.approx(wanted)


@pytest.mark.parametrize("seed", range(30))
def test_a_price_bounds_the_optimum(seed):
    problem = random_problem(seed, rows=1)
    wanted = best_cost(problem)
    found = price_row(problem, None)
    assert found.bound <= wanted + 1e-9
    if found.choice is not None:
        assert is_feasible(problem, found.choice)
        assert found.cost >= wanted - 1e-9


def test_the_checker_is_exact_and_catches_lies():
    problem = random_problem(3)
    found = solve(problem)
    check_solution(problem, found)
    with pytest.raises(SolverError, match="claims"):
        check_solution(problem, dataclasses.replace(found, cost=found.cost - 0.001, bound=0.0))
    with pytest.raises(SolverError, match="bound"):
        check_solution(problem, dataclasses.replace(found, bound=found.cost + 1.0))


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
