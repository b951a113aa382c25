"""Proofs of small networks, against trying everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assignment.problems import optimum, random_instance
from doubles.few import few_or_all
from meshwise.assignment.bounds.exact_bound import dearest
from meshwise.assignment.bounds.messages import cost_of, room_left
from meshwise.assignment.instance import evaluate
from meshwise.assignment.network import Network, network_of
from meshwise.assignment.proof.labels import FOUND, NOTHING, LabelLimits, find_labels
from meshwise.assignment.proof.order import in_order, narrow_order
from meshwise.assignment.proof.price_lines import PriceLineEffort, bounds_of, lines_at
from meshwise.assignment.proof.proof import BRIEF_WORK, _improved, _within_cores, prove
from meshwise.assignment.reductions.reduction import reduce_instance

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def proved(network: Network, cost: float, *, work: int = 10**9, price: float = 1.0):
    prices = np.full(len(network.capacity), price)
    return prove(network, prices, cost, stop=np.zeros(1, np.int8), work=work)


@pytest.mark.parametrize("count", few_or_all(30, 100))
@pytest.mark.parametrize("tight", [0.1, pytest.param(0.3, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize("price", [0.0, 1.0])
def test_the_best_choice_is_found_and_proved(tight: float, price: float, count: int) -> None:
    num_rows, num_found = 0, 0
    for seed in range(count):
        instance = random_instance(seed, num_nodes=8, tight=tight)
        reduction = reduce_instance(instance)
        if reduction.infeasible or not len(reduction.network.size):
            continue
        num_rows = max(num_rows, len(reduction.network.capacity))
        want = optimum(instance)
        proof = proved(reduction.network, math.inf, price=price)
        assert proof.is_proved, seed
        if want is None:
            assert proof.choice is None
            continue
        num_found += 1
        assert proof.choice is not None
        full = reduction.expand(proof.choice)
        assert evaluate(instance, full.tolist()).cost == want
        assert proof.bound <= want
    assert num_found > 3
    assert num_rows > 1


def test_without_rows_a_brief_proof_from_a_choice_finds_the_best() -> None:
    num_better = 0
    for seed in range(30):
        instance = random_instance(seed, num_nodes=8, tight=None, forbid=False)
        network, known = network_of(instance), np.zeros(8, np.int64)
        stop, cost = np.zeros(1, np.int8), cost_of(network, known)
        proof = prove(network, np.ones(0), cost, stop=stop, choice=known, work=BRIEF_WORK)
        assert proof.is_proved
        best = known if proof.choice is None else proof.choice
        assert cost_of(network, best) == optimum(instance)
        num_better += proof.choice is not None
    assert num_better > 3


@pytest.mark.parametrize("count", few_or_all(15, 40))
def test_a_search_around_a_choice_is_no_worse_still_fits_and_repeats_itself(count: int) -> None:
    num_better = 0
    effort = PriceLineEffort(stop=np.zeros(1, np.int8), left=np.array([10**9], np.int64))
    for seed in range(count):
        network = reduce_instance(random_instance(seed, num_nodes=30, tight=0.4)).network
        if not len(network.size):
            continue
        prices = np.ones(len(network.capacity))
        allowed = np.array([10**6], np.int64)
        choice = np.zeros(len(network.size), np.int64)
        lines = lines_at(network, prices, dearest(network) + 1, effort)
        bounds = bounds_of(network, lines, dearest(network) + 1, effort.stop)
        if find_labels(network, bounds, LabelLimits(math.inf, 128, 4), allowed, choice) != FOUND:
            continue
        found = [_improved(network, prices, choice, effort) for _ in range(2)]
        assert found[0].tolist() == found[1].tolist()
        assert room_left(network, found[0]).min(initial=0) >= 0
        assert cost_of(network, found[0]) <= cost_of(network, choice)
        num_better += cost_of(network, found[0]) < cost_of(network, choice)
    assert num_better


def test_cores_hold_choices_that_fit_and_cost_less_than_what_is_known() -> None:
    num_found, num_best = 0, 0
    effort = PriceLineEffort(stop=np.zeros(1, np.int8), left=np.array([10**9], np.int64))
    for seed in range(40):
        instance = random_instance(seed, num_nodes=7, tight=0.3)
        network = reduce_instance(instance).network
        want = optimum(instance)
        if not len(network.size) or want is None:
            continue
        for known in (want, want + 1, dearest(network) + 1):
            lines = lines_at(network, np.ones(len(network.capacity)), known, effort)
            choice = _within_cores(network, lines, known, effort)
            if choice is None:
                continue
            assert room_left(network, choice).min(initial=0) >= 0
            assert want <= cost_of(network, choice) < known
            num_found += 1
            num_best += cost_of(network, choice) == want
    assert num_found > 3
    assert num_best


def test_nothing_is_better_than_the_best_where_that_is_searched_around() -> None:
    seen = 0
    for seed in range(30):
        network = reduce_instance(random_instance(seed, num_nodes=12, tight=0.3)).network
        if not len(network.size) or (best := proved(network, math.inf).choice) is None:
            continue
        seen += 1
        stop, prices = np.zeros(1, np.int8), np.ones(len(network.capacity))
        proof = prove(network, prices, cost_of(network, best), stop=stop, choice=best)
        assert (proof.choice, proof.is_proved) == (None, True)
    assert seen > 3


def test_rows_that_cannot_be_met_are_proved() -> None:
    seen = 0
    for seed in range(200):
        instance = random_instance(seed, num_nodes=6, tight=0.0)
        reduction = reduce_instance(instance)
        if optimum(instance) is not None or reduction.infeasible:
            continue
        seen += 1
        proof = proved(reduction.network, math.inf)
        assert (proof.choice, proof.is_proved) == (None, True)
    assert seen


@pytest.mark.parametrize("count", few_or_all(20, 60))
def test_nothing_is_better_than_the_best(count: int) -> None:
    seen = 0
    for seed in range(count):
        reduction = reduce_instance(random_instance(seed, num_nodes=12, tight=0.3))
        if reduction.infeasible or not len(reduction.network.size):
            continue
        best = proved(reduction.network, math.inf)
        if best.choice is None:
            continue
        seen += 1
        cost = cost_of(reduction.network, best.choice)
        again = proved(reduction.network, cost)
        assert (again.choice, again.bound, again.is_proved) == (None, cost, True)
        below = proved(reduction.network, cost - 1)
        assert (below.choice, below.is_proved) == (None, True)
        above = proved(reduction.network, cost + 1)
        assert above.choice is not None
        assert cost_of(reduction.network, above.choice) == cost
        assert room_left(reduction.network, above.choice).min(initial=0) >= 0
    assert seen > 3


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    tight=st.floats(0, 0.9),
    work=st.integers(0, 20_000),
    price=st.floats(0, 100),
)
def test_no_bound_is_above_the_optimum(seed: int, tight: float, work: int, price: float) -> None:
    """However little work there is, and whatever the prices are."""
    instance = random_instance(seed, num_nodes=6, tight=tight)
    want = optimum(instance)
    reduction = reduce_instance(instance)
    if reduction.infeasible:
        return
    proof = proved(reduction.network, math.inf, work=work, price=price)
    assert want is None or proof.bound <= want
    assert not proof.is_proved or (proof.choice is None) == (want is None)
    if proof.choice is not None:
        full = reduction.expand(proof.choice)
        assert evaluate(instance, full.tolist()).cost == want


@pytest.mark.parametrize(
    "beam", [1, *(pytest.param(b, marks=pytest.mark.slow) for b in (4, 10**5))]
)
def test_few_labels_find_choices_that_fit_and_prove_nothing_false(beam: int) -> None:
    num_found, num_best = 0, 0
    for seed in range(80):
        instance = random_instance(seed, num_nodes=9, tight=0.3)
        reduction = reduce_instance(instance)
        if reduction.infeasible or not len(reduction.network.size):
            continue
        network = in_order(reduction.network, narrow_order(reduction.network))
        want = optimum(instance)
        dear = dearest(network) + 1
        stop, choice = np.zeros(1, np.int8), np.zeros(len(network.size), np.int64)
        effort = PriceLineEffort(stop=stop, left=np.array([10**9]))
        lines = lines_at(network, np.ones(len(network.capacity)), dear, effort)
        bounds = bounds_of(network, lines, dear, stop)
        room = min(32 * beam, 10**5)
        says = find_labels(
            network, bounds, LabelLimits(dear, room, beam), np.array([10**9]), choice
        )
        assert says != NOTHING or want is None, seed
        if says == FOUND:
            assert want is not None
            num_found += 1
            num_best += cost_of(network, choice) == want
            assert cost_of(network, choice) >= want
            assert room_left(network, choice).min(initial=0) >= 0
    assert num_found > 3
    assert num_best == num_found if beam == 10**5 else 0 < num_best < num_found


@pytest.mark.parametrize("count", few_or_all(20, 60))
def test_choices_that_a_neighbour_forbids_prove_nothing_false(count: int) -> None:
    """As a reduction that is cut short leaves them."""
    for seed in range(count):
        instance = random_instance(seed, num_nodes=7, tight=0.3)
        proof = proved(network_of(instance), math.inf)
        want = optimum(instance)
        assert want is None or proof.bound <= want
        assert not proof.is_proved or (proof.choice is None) == (want is None), seed
        if proof.is_proved and proof.choice is not None:
            assert evaluate(instance, proof.choice.tolist()).cost == want


def test_little_work_gives_up_and_equal_work_gives_equal_answers() -> None:
    network = reduce_instance(random_instance(3, num_nodes=60, tight=0.3, forbid=False)).network
    assert not proved(network, math.inf, work=1000).is_proved
    first, second = (proved(network, math.inf, work=3_000_000) for _ in range(2))
    assert first.bound == second.bound
    assert first.is_proved == second.is_proved


def test_a_flag_ends_a_proof() -> None:
    network = reduce_instance(random_instance(3, num_nodes=60, tight=0.3, forbid=False)).network
    prices = np.ones(len(network.capacity))
    assert not prove(network, prices, math.inf, stop=np.ones(1, np.int8)).is_proved


def test_an_order_changes_no_cost() -> None:
    for seed in range(20):
        network = network_of(random_instance(seed, num_nodes=8))
        order = narrow_order(network)
        assert sorted(order.tolist()) == list(range(8))
        placed = in_order(network, order)
        rng = np.random.default_rng(seed)
        for _ in range(10):
            choice = rng.integers(0, network.size)
            assert cost_of(placed, choice[order]) == cost_of(network, choice)
            assert room_left(placed, choice[order]).tolist() == room_left(network, choice).tolist()
