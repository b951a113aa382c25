"""Choices that no edge forbids, against trying everything."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from assignment.problems import parse_instance
from meshwise.assignment.instance import INFINITE_COST, Instance, evaluate
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.network import network_of
from meshwise.assignment.search.forward_checking import find_consistent

pytestmark = pytest.mark.usefixtures("compiled_kernels")
STOP = np.zeros(1, np.int8)


def complete_graph(seed: int, *, num_nodes: int, choices: int, forbidden: float) -> Instance:
    """Each pair of nodes forbids a share of its pairs of choices."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, choices + 1, num_nodes) if num_nodes < 10 else [choices] * num_nodes
    ends = list(itertools.combinations(range(num_nodes), 2))
    costs: list[list[int]] = []
    for u, v in ends:
        matrix = rng.integers(0, 99, (sizes[u], sizes[v]))
        matrix[rng.random(matrix.shape) < forbidden] = INFINITE_COST
        costs.append(matrix.ravel().tolist())
    own = [[0] * int(k) for k in sizes]
    nodes: dict[str, Any] = {"costs": own, "usages": own, "intervals": [[0, 1]] * num_nodes}
    document = {"nodes": nodes, "edges": {"nodes": ends, "costs": costs}}
    document["edges"]["nodes"] = [list(pair) for pair in ends]
    return parse_instance({"problem": document}, "complete")


@pytest.mark.parametrize("seed", range(40))
def test_it_finds_one_if_there_is_one(seed: int) -> None:
    instance = complete_graph(seed, num_nodes=5, choices=4, forbidden=0.45)
    sizes = np.diff(instance.first_choice)
    every = itertools.product(*(range(k) for k in sizes))
    is_possible = any(evaluate(instance, choice).cost is not None for choice in every)
    choice, is_impossible = find_consistent(network_of(instance), STOP)
    assert is_impossible == (not is_possible)
    assert (choice is not None) == is_possible
    assert choice is None or evaluate(instance, choice.tolist()).cost is not None


def test_without_a_budget_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwise.assignment.search.forward_checking._BUDGET", 150)
    instance = complete_graph(0, num_nodes=12, choices=5, forbidden=0.5)
    assert find_consistent(network_of(instance), STOP) == (None, False)


def test_dense_problems_without_a_solution_are_proved_infeasible() -> None:
    instance = complete_graph(1, num_nodes=80, choices=20, forbidden=0.3)
    answer = solve_instance(instance, time_limit_s=300)
    assert (answer.status, answer.choice) == ("infeasible", None)
