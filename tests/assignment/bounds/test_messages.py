"""Messages along one edge, against the minima of a matrix."""

from __future__ import annotations

import numpy as np
import pytest

from meshwise.assignment.bounds.messages import cost_of, follow, no_messages, sweep
from meshwise.assignment.network import Network, cost_network
from meshwise.assignment.problem import PairCost, Problem
from meshwise.kernels.compiler import BACKWARD, FORWARD

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def pair_of_nodes(size: int, width: int, seed: int) -> Network:
    rng = np.random.default_rng(seed)
    matrix = rng.random((size, width))
    matrix[rng.random((size, width)) < 0.2] = np.inf
    matrix[0] = matrix[:, 0] = 1.0
    costs = (rng.random(size), rng.random(width))
    return cost_network(Problem(costs=costs, pairs=(PairCost(u=0, v=1, cost=matrix),)))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 11])
@pytest.mark.parametrize("size", [1, 3, 4, 6])
def test_an_edge_gives_a_node_the_least_of_each_choice(size, width):
    """Whether the choices come out even in groups or not."""
    net = pair_of_nodes(size, width, seed=size + 10 * width)
    own, other = net.cost[:size], net.cost[size:]
    total = own[:, None] + net.matrices.reshape(size, width) + other
    held = no_messages(net)
    assert sweep(FORWARD, net, held) == pytest.approx(total.min())
    np.testing.assert_allclose(held.node[size:], total.min(axis=0))
    assert sweep(BACKWARD, net, held) == pytest.approx(total.min())
    np.testing.assert_allclose(held.node[:size], total.min(axis=1))
    choice = np.zeros(2, np.int64)
    follow(net, held, choice)
    assert cost_of(net, choice) == pytest.approx(total.min())
