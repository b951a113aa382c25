"""Problems that tolerances cannot decide."""

from __future__ import annotations

import numpy as np
import pytest

from assignment.problems import optimum, parse_instance, random_document, random_instance
from meshwise.assignment.bounds.ascent import Ascent
from meshwise.assignment.exact.enumeration import enumerate_choices
from meshwise.assignment.instance import evaluate
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.options import SolverOptions
from meshwise.assignment.reductions.reduction import reduce_instance


def close_usages(seed: int, num_nodes: int):
    """Usages near 2^40 that differ by some bytes, and a limit among their sums."""
    document = random_document(seed, num_nodes=num_nodes, tight=None, forbid=seed % 2 == 0)
    nodes = document["problem"]["nodes"]
    nodes["usages"] = [[2**40 + used for used in row] for row in nodes["usages"]]
    nodes["intervals"] = [[0, 2] if i % 3 else [1, 3] for i in range(num_nodes)]
    free = parse_instance(document, "x")
    least = evaluate(free, [int(np.argmin(row)) for row in nodes["usages"]]).peak
    most = evaluate(free, [int(np.argmax(row)) for row in nodes["usages"]]).peak
    document["problem"]["usage_limit"] = (2 * least + most) // 3
    return parse_instance(document, "x")


@pytest.mark.parametrize("small", [0, 4000])
def test_rows_that_bind_to_the_byte_are_decided(small):
    for seed in range(12):
        instance = close_usages(seed, 8)
        want = optimum(instance)
        answer = solve_instance(
            instance,
            time_limit_s=600,
            seed=seed,
            options=SolverOptions(small_columns=small),
        )
        assert answer.status == ("infeasible" if want is None else "optimal"), seed
        assert answer.cost == want


@pytest.mark.parametrize("rounds", [0, 20])
def test_enumeration_finds_the_best_and_proves_it(rounds):
    seen = 0
    for seed in range(30):
        instance = random_instance(seed, num_nodes=8, tight=0.2)
        want, reduction = optimum(instance), reduce_instance(instance)
        if want is None or len(reduction.network.size) < 2:
            continue
        seen += 1
        ascent = Ascent.of(reduction.network)
        ascent.run(rounds)
        for known in (np.inf, want + 1.0):
            choice, is_proved = enumerate_choices(ascent.network, ascent.held, ascent.prices, known)
            assert is_proved
            assert choice is not None
            assert evaluate(instance, reduction.expand(choice).tolist()).cost == want
        assert enumerate_choices(ascent.network, ascent.held, ascent.prices, want) == (None, True)
    assert seen > 3


def test_enumeration_without_a_solution():
    seen = 0
    for seed in range(200):
        instance = random_instance(seed, num_nodes=6, tight=0.0)
        reduction = reduce_instance(instance)
        if optimum(instance) is not None or reduction.infeasible:
            continue
        seen += 1
        ascent = Ascent.of(reduction.network)
        assert enumerate_choices(ascent.network, ascent.held, ascent.prices, np.inf) == (None, True)
    assert seen


def test_a_flag_ends_enumeration_without_a_proof():
    network = reduce_instance(random_instance(3, num_nodes=300, tight=0.3, forbid=False)).network
    ascent = Ascent.of(network, np.ones(1, np.int8))
    assert enumerate_choices(network, ascent.held, ascent.prices, np.inf) == (None, False)


def test_counted_steps_end_enumeration_without_a_proof():
    network = reduce_instance(random_instance(3, num_nodes=300, tight=0.3, forbid=False)).network
    ascent = Ascent.of(network)
    ascent.run(20)
    first, second = (
        enumerate_choices(network, ascent.held, ascent.prices, np.inf, steps=3000) for _ in range(2)
    )
    assert not first[1]
    assert (first[0] is None) == (second[0] is None)
    assert first[0] is None or first[0].tolist() == second[0].tolist()
