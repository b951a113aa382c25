"""Reductions keep the optimum, and every choice of the network extends to one of the problem."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from assignment.problems import optimum, parse_instance, random_document, random_instance
from doubles.few import few_or_all
from meshwise.assignment.bounds.ascent import Ascent
from meshwise.assignment.bounds.exact_bound import choices_within, exact_bound
from meshwise.assignment.bounds.messages import add_prices, cost_of, no_messages, room_left, sweep
from meshwise.assignment.instance import Instance, evaluate
from meshwise.assignment.network import Network
from meshwise.assignment.reductions.arrays import CUT
from meshwise.assignment.reductions.reduction import Reduction, reduce_instance, reduce_network

pytestmark = pytest.mark.usefixtures("compiled_kernels")

LIMITS = (None, 0.05, 0.4)


def best_of(reduction: Reduction) -> tuple[float, np.ndarray] | None:
    """Least cost of the network by trying everything, and its choice."""
    if reduction.infeasible:
        return None
    net = reduction.network
    best: tuple[float, np.ndarray] | None = None
    for tuple_ in itertools.product(*(range(k) for k in net.size)):
        choice = np.array(tuple_, np.int64)
        cost = cost_of(net, choice)
        fits = np.isfinite(cost) and room_left(net, choice).min(initial=0) >= 0
        if fits and (best is None or cost < best[0]):
            best = cost, choice
    return best


def check(instance: Instance, reduction: Reduction) -> None:
    want, found = optimum(instance), best_of(reduction)
    if want is None:
        assert found is None
        return
    assert found is not None
    cost, choice = found
    full = evaluate(instance, reduction.expand(choice).tolist())
    assert full.cost == want == round(cost)
    assert instance.limit is None or full.peak <= instance.limit


@pytest.mark.parametrize("count", few_or_all(40, 120))
@pytest.mark.parametrize("tight", LIMITS)
def test_reductions_keep_the_optimum(tight, count):
    for seed in range(count):
        instance = random_instance(seed, tight=tight)
        check(instance, reduce_instance(instance))


def test_every_choice_of_the_network_costs_and_uses_what_it_says():
    for seed in range(60):
        instance = random_instance(seed, num_nodes=9, tight=0.3)
        reduction = reduce_instance(instance)
        if reduction.infeasible:
            continue
        net, rng = reduction.network, np.random.default_rng(seed)
        for _ in range(5):
            choice = np.array([rng.integers(k) for k in net.size], np.int64)
            found = evaluate(instance, reduction.expand(choice).tolist())
            cost = cost_of(net, choice)
            assert (found.cost is None) == (not np.isfinite(cost))
            assert found.cost is None or found.cost == round(cost)
            assert instance.limit is not None
            fits = room_left(net, choice).min(initial=0) >= 0
            assert fits == (found.peak <= instance.limit)


def test_what_every_choice_exceeds_is_infeasible():
    for seed in range(200):
        reduction = reduce_instance(random_instance(seed, tight=0.0))
        assert reduction.infeasible or reduction.network.capacity.min(initial=0) >= 0, seed


@pytest.mark.parametrize("count", few_or_all(30, 80))
@pytest.mark.parametrize("tight", LIMITS)
def test_a_reduction_that_is_cut_short_is_valid(tight, count):
    for seed in range(count):
        instance = random_instance(seed, tight=tight)
        check(instance, reduce_instance(instance, np.array([CUT], np.int8)))


def test_what_no_time_was_left_for_is_left():
    whole, cut = 0, 0
    for seed in range(30):
        instance = random_instance(seed, forbid=False)
        whole += len(reduce_instance(instance).network.size)
        cut += len(reduce_instance(instance, np.array([CUT], np.int8)).network.size)
    assert whole < cut


def test_something_is_reduced():
    left = [len(reduce_instance(random_instance(s)).network.size) for s in range(60)]
    assert np.mean(left) < 3


@pytest.mark.parametrize("count", few_or_all(20, 60))
@pytest.mark.parametrize("tight", LIMITS)
def test_bounds_never_exceed_the_optimum(tight, count):
    """Of the ascent, and the same in exact arithmetic; and no better choice is taken out."""
    for seed in range(count):
        instance = random_instance(seed, num_nodes=7, tight=tight)
        reduction = reduce_instance(instance)
        want = optimum(instance)
        if want is None or not len(reduction.network.size):
            continue
        net = reduction.network
        ascent = Ascent.of(net)
        ascent.run(30)
        assert ascent.bound <= want * (1 + 1e-9) + 1e-6
        proven = exact_bound(net, ascent.held, ascent.prices)
        assert proven is not None
        assert proven <= want
        assert want <= ascent.cost
        ascent.restart()
        sweep(True, net, ascent.held)
        bound = sweep(False, net, ascent.held) + net.constant
        bound -= float(ascent.prices @ net.capacity)
        for known in (want + 1, want + 10):
            keep = choices_within(net, ascent.held, ascent.prices, bound, known)
            deeper = reduce_network(net, keep)
            found = best_of(deeper)
            assert found is not None
            assert round(found[0]) == want
            full = reduction.expand(deeper.expand(found[1]))
            assert evaluate(instance, full.tolist()).cost == want


def _large_rows(seed: int) -> Network:
    """A problem whose bytes are so many that their prices are small parts of one."""
    document = random_document(seed, num_nodes=30, tight=0.3, forbid=False)
    nodes = document["problem"]["nodes"]
    nodes["usages"] = [[k * 10**10 for k in row] for row in nodes["usages"]]
    document["problem"]["usage_limit"] *= 10**10
    nodes["costs"] = [[k * 10**6 for k in row] for row in nodes["costs"]]
    return reduce_instance(parse_instance(document, "x")).network


def test_small_prices_of_many_bytes_lose_nothing_in_exact_arithmetic():
    num_rows = 0
    for seed in range(20):
        net, rng = _large_rows(seed), np.random.default_rng(seed)
        # Prices for which costs and bytes are worth about the same.
        prices = 1e-4 * rng.random(len(net.capacity))
        held = no_messages(net)
        add_prices(prices, net, held)
        sweep(True, net, held)
        bound = sweep(False, net, held) + net.constant - float(prices @ net.capacity)
        proven = exact_bound(net, held, prices)
        assert proven is not None
        assert abs(proven - bound) <= 2
        num_rows += len(net.capacity)
    assert num_rows > 20
