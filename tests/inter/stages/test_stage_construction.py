"""Stage construction against enumeration, hand arithmetic, and its own claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from evaluation.baselines.built_stages import build_stages

from doubles.few import few, few_or_all
from meshwise.errors import InfeasibleError
from meshwise.inter.stages import stage_construction
from meshwise.inter.stages.least_fill import least_fill
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_construction import build_stages_below
from meshwise.inter.stages.stage_options import stage_options
from meshwise.inter.stages.stage_problem import StageProblem, as_alpa
from oracle.stage_problems import brute_force, check_stages, random_problem

NUM_PROBLEMS = 300
CHUNK = 50


def agree(problem, mode, num_stages=None):
    """Whether there are stages; then they are the best."""
    stated = as_alpa(problem) if mode == "alpa" else problem
    cost, _ = brute_force(stated, num_stages)
    try:
        found = build_stages(problem, mode, num_stages=num_stages, epsilon_s=0.0)
    except InfeasibleError:
        assert cost == np.inf
        return False
    check_stages(stated, found.stages)
    assert found.total_s == pytest.approx(cost, rel=1e-9)
    assert found.total_s == step_time(stated, found.stages).total_s
    assert found.bound_s <= found.total_s
    assert found.bound_s == pytest.approx(cost, rel=1e-9)
    return True


@pytest.mark.parametrize("mode", ["alpa", "time"])
@pytest.mark.parametrize("first", few(range(0, NUM_PROBLEMS, CHUNK), [0]))
def test_enumeration_finds_nothing_cheaper(first, mode):
    # Every second problem is on a mixed cluster.
    feasible = [
        agree(random_problem(s, mixed=s % 2 == 1), mode) for s in range(first, first + CHUNK)
    ]
    assert CHUNK // 3 <= sum(feasible) < CHUNK


@pytest.mark.parametrize("seed", few(range(40), range(16)))
def test_a_given_number_of_stages_is_kept(seed):
    problem = random_problem(seed, mixed=seed % 2 == 1, max_layers=4)
    for count in range(1, problem.costs.num_layers + 1):
        agree(problem, "time", num_stages=count)


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_epsilon_costs_at_most_its_bound(monkeypatch, share):
    saved, lost = 0, 0
    tried: list[float] = []

    def counted(problem, options, load, once, cutoff):
        tried.append(load)
        return least_fill(problem, options, load, once, cutoff)

    monkeypatch.setattr(stage_construction, "least_fill", counted)
    for seed in range(80):
        problem = random_problem(seed, max_layers=5)
        cost, _ = brute_force(as_alpa(problem))
        if cost < np.inf:
            epsilon = share * cost / problem.num_microbatches
            tried.clear()
            found = build_stages(problem, "alpa", epsilon_s=epsilon)
            num_tried = len(tried)
            assert found.error_s == pytest.approx(share * cost)
            assert cost * (1 - 1e-9) <= found.total_s <= cost + found.error_s
            assert found.total_s - found.error_s <= found.bound_s * (1 + 1e-9)
            assert found.bound_s <= cost * (1 + 1e-9)
            tried.clear()
            build_stages(problem, "alpa", epsilon_s=0.0)
            saved += num_tried < len(tried)
            lost += found.total_s > cost * (1 + 1e-9)
    # Epsilon is made use of, and where it is large something is lost.
    assert saved > 5
    assert lost > 0 or share < 0.1


@pytest.mark.parametrize("count", few_or_all(20, 60))
def test_epsilon_bounds_the_whole_objective_too(count):
    for seed in range(count):
        problem = random_problem(seed, mixed=seed % 2 == 1)
        cost, _ = brute_force(problem)
        if cost < np.inf:
            epsilon = 0.05 * cost / problem.num_microbatches
            found = build_stages(problem, epsilon_s=epsilon)
            assert cost * (1 - 1e-9) <= found.total_s <= cost + found.error_s
            assert found.total_s - found.error_s <= found.bound_s <= cost * (1 + 1e-9)


def most_to_end(problem: StageProblem) -> np.ndarray:
    """How many stages to the end memory allows each stage."""
    costs, layers = problem.costs, problem.costs.num_layers
    memory = np.array([m.memory_bytes for m in costs.submeshes])[:, None]
    in_flight = [
        problem.schedule.in_flight(s, layers, problem.num_microbatches)
        for s in range(1, layers + 1)
    ]
    return np.sum([costs.peak_bytes(count) <= memory for count in in_flight], axis=0)


@pytest.mark.parametrize("mixed", [False, True])
def test_pruning_removes_only_dominated_choices(mixed):
    """Each pruned variant has one that is no worse in any number, and enumeration loses nothing."""
    pruned = 0
    for seed in range(100, 120):
        problem = random_problem(seed, mixed=mixed)
        if problem.schedule.depends_on_num_stages:
            continue
        options = stage_options(problem)
        kept = np.zeros(problem.costs.microbatch_s.shape, bool)
        kept[tuple(options.where.T)] = True
        most = most_to_end(problem)
        fill = problem.schedule.fill_s(problem.costs.busy_s)
        columns = [problem.costs.busy_s, fill, problem.costs.once_s, -most]
        size = np.array([m.num_devices for m in problem.costs.submeshes])
        possible = np.isfinite(problem.costs.microbatch_s) & (most >= 1)
        possible &= (size <= problem.num_devices)[:, None]
        for i, j, m, v in np.argwhere(possible & ~kept):
            pruned += 1
            assert any(
                kept[i, j, m, u] and all(x[i, j, m, u] <= x[i, j, m, v] for x in columns)
                for u in range(kept.shape[3])
            )
        thinned = replace(
            problem.costs, microbatch_s=np.where(kept, problem.costs.microbatch_s, np.inf)
        )
        cost, _ = brute_force(problem)
        assert brute_force(replace(problem, costs=thinned))[0] == pytest.approx(cost, rel=1e-12)
    assert pruned > 50


@pytest.mark.parametrize("mixed", [False, True])
def test_what_is_not_allowed_is_as_if_it_were_not_there(mixed):
    num_feasible = 0
    for seed in range(40):
        problem = random_problem(seed, mixed=mixed)
        costs = problem.costs
        allowed = np.random.default_rng(seed).random(costs.microbatch_s.shape) < 0.7
        fewer = replace(costs, microbatch_s=np.where(allowed, costs.microbatch_s, np.inf))
        found = build_stages_below(replace(problem, allowed=allowed), np.inf)
        there = build_stages_below(replace(problem, costs=fewer), np.inf)
        assert (found and found.stages) == (there and there.stages)
        num_feasible += found is not None
    assert num_feasible > 20


def test_equal_problems_get_equal_plans():
    for seed in range(20):
        try:
            found = build_stages(random_problem(seed))
        except InfeasibleError:
            continue
        assert found == build_stages(random_problem(seed))


@pytest.mark.parametrize("mode", ["alpa", "time"])
def test_only_better_stages_are_given_below_a_known_time(mode):
    found = 0
    for seed in range(60):
        problem = random_problem(seed, mixed=seed % 2 == 1)
        problem = as_alpa(problem) if mode == "alpa" else problem
        try:
            best = build_stages(problem, epsilon_s=0.0).total_s
        except InfeasibleError:
            assert build_stages_below(problem, np.inf) is None
            continue
        found += 1
        for above in (1.0001, 1.1, 3.0):
            plan = build_stages_below(problem, above * best, epsilon_s=0.0)
            assert plan is not None
            assert plan.total_s == pytest.approx(best, rel=1e-9)
            assert plan.bound_s == pytest.approx(best, rel=1e-9)
        for below in (0.9999, 0.5, 0.0):
            assert build_stages_below(problem, below * best, epsilon_s=0.0) is None
    assert found > 20
