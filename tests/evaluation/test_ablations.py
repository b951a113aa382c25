"""Simpler deciders: what they fix is fixed, and the rest is as good as enumeration finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from evaluation.baselines.built_stages import build_stages
from evaluation.baselines.restricted_stages import one_device_a_stage, with_cuts
from evaluation.paper.ablations import equal_layer, equal_operator
from evaluation.paper.cut_rules import equal_count

from meshwise.errors import InfeasibleError
from oracle.stage_problems import brute_force, check_stages, random_problem

SEEDS = range(200, 230)


def cuts_of(plan):
    return tuple((s.first_layer, s.last_layer) for s in plan.stages)


def plan_or_none(decide):
    try:
        return decide()
    except InfeasibleError:
        return None


def best_of_cuts(problem, cuts):
    """The cheapest T of stages with exactly these layers."""
    kept = np.zeros_like(problem.costs.microbatch_s, bool)
    for first, last in cuts:
        kept[first, last] = True
    costs = replace(problem.costs, microbatch_s=np.where(kept, problem.costs.microbatch_s, np.inf))
    return brute_force(replace(problem, costs=costs), len(cuts))[0]


def test_equal_layers_are_the_best_of_all_equal_cuts():
    found = 0
    for seed in SEEDS:
        problem = random_problem(seed, mixed=seed % 2 == 1, max_layers=5)
        layers = problem.costs.num_layers
        best = min(best_of_cuts(problem, equal_count(layers, n)) for n in range(1, layers + 1))
        plan = plan_or_none(lambda p=problem: equal_layer(p, epsilon_s=0.0))
        assert (plan is None) == (best == np.inf)
        if plan is not None:
            found += 1
            check_stages(problem, plan.stages)
            assert plan.total_s == pytest.approx(best, rel=1e-9)
            assert cuts_of(plan) == equal_count(layers, len(plan.stages))
    assert found > 10


def test_no_rule_beats_stage_construction():
    compared, better = 0, 0
    for seed in SEEDS:
        problem = random_problem(seed)
        layers = problem.costs.num_layers
        best = plan_or_none(lambda p=problem: build_stages(p, epsilon_s=0.0))
        rules = [
            lambda p=problem: equal_layer(p),
            lambda p=problem, n=layers: equal_operator(p, range(1, n + 1)),
            lambda p=problem: one_device_a_stage(p),
            lambda p=problem, n=layers: with_cuts(p, ((0, n - 1),)),
        ]
        for rule in rules:
            plan = plan_or_none(rule)
            if plan is not None:
                assert best is not None
                assert plan.total_s >= best.total_s * (1 - 1e-9)
                compared, better = compared + 1, better + (plan.total_s > best.total_s * 1.01)
    assert compared > 30
    assert better > 10


def test_one_device_a_stage_and_one_stage():
    seen = 0
    for seed in SEEDS:
        problem = random_problem(seed)
        one_stage = ((0, problem.costs.num_layers - 1),)
        inter = plan_or_none(lambda p=problem: one_device_a_stage(p))
        intra = plan_or_none(lambda p=problem, c=one_stage: with_cuts(p, c))
        if inter is not None:
            submeshes = problem.costs.submeshes
            assert {submeshes[s.submesh].num_devices for s in inter.stages} == {1}
        if intra is not None:
            assert cuts_of(intra) == one_stage
            assert intra.total_s == pytest.approx(brute_force(problem, 1)[0], rel=1e-5)
            seen += inter is not None
    assert seen > 3


def test_given_cuts_are_kept():
    kept = 0
    for seed in range(200, 300):
        problem = random_problem(seed)
        if problem.costs.num_layers == 4:
            cuts = ((0, 1), (2, 3))
            plan = plan_or_none(lambda p=problem, c=cuts: with_cuts(p, c, epsilon_s=0.0))
            best = best_of_cuts(problem, cuts)
            assert (plan is None) == (best == np.inf)
            if plan is not None:
                assert cuts_of(plan) == cuts
                assert plan.total_s == pytest.approx(best, rel=1e-9)
                kept += 1
    assert kept > 3
