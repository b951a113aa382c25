"""The planner against enumeration on random graphs of up to 8 operators."""

from __future__ import annotations

import random

import pytest

from doubles.few import few
from doubles.graph_builders import mesh, random_graph
from meshwise.intra.expand import expand
from meshwise.intra.network import build_network
from meshwise.intra.options import IntraOptions
from meshwise.intra.plan_graph import plan_graph
from meshwise.intra.price import step_time_s
from meshwise.memory.peak import peak
from meshwise.plan.verify import verify_decision
from oracle.brute_force import brute_force

MESH = mesh(2, bandwidths=(1e6,))
NUM_GRAPHS = 200


def small_peak(graph, network, seed):
    """A limit that some plan meets: the least peak of some random plans."""
    rng = random.Random(seed)
    peaks = []
    for _ in range(20):
        choice = [rng.randrange(len(n.cost_s)) for n in network.nodes]
        peaks.append(peak(graph, expand(network, choice), MESH).num_bytes)
    return min(peaks)


def agree_without_limit(seed):
    graph = random_graph(seed, 8)
    found = plan_graph(graph, MESH, IntraOptions())
    verify_decision(graph, found.decision, MESH)
    assert found.status == "optimal"
    cost, _ = brute_force(build_network(graph, MESH, IntraOptions()))
    assert found.objective_s == pytest.approx(cost, rel=1e-9, abs=1e-18)
    price = step_time_s(graph, found.decision, MESH)
    assert price <= found.objective_s * (1 + 1e-9)


def agree_within_memory(seed):
    """Whether the limit bites; then the answer is proved, and enumeration finds none cheaper."""
    graph = random_graph(seed, 8)
    network = build_network(graph, MESH, IntraOptions())
    loose = plan_graph(graph, MESH, IntraOptions())
    limit = max(small_peak(graph, network, seed), int(0.85 * loose.peak_bytes))
    if limit >= loose.peak_bytes:
        return False
    tight = plan_graph(graph, MESH, IntraOptions(memory_bytes=limit))
    verify_decision(graph, tight.decision, MESH)
    assert peak(graph, tight.decision, MESH).num_bytes <= limit
    assert tight.objective_s >= loose.objective_s * (1 - 1e-9)
    assert tight.status == "optimal"
    assert tight.bound_s == tight.objective_s
    _, better = brute_force(network, limit, below=tight.objective_s * (1 - 1e-9))
    assert better == ()
    return True


@pytest.mark.parametrize("first", range(0, NUM_GRAPHS, 50))
def test_enumeration_finds_nothing_cheaper(first):
    for seed in range(first, first + 50):
        agree_without_limit(seed)


# The enumeration of these graphs takes as long as those of all others.
LARGE = (48, 103)


@pytest.mark.slow
@pytest.mark.parametrize("seed", LARGE)
def test_enumeration_of_large_graphs_finds_nothing_cheaper_that_fits(seed):
    agree_within_memory(seed)


@pytest.mark.parametrize("first", few(range(0, NUM_GRAPHS, 50), [0]))
def test_enumeration_finds_nothing_cheaper_that_fits(first):
    bites = [agree_within_memory(seed) for seed in range(first, first + 50) if seed not in LARGE]
    # The limit bites in a third of the graphs.
    assert sum(bites) >= 8
