"""What several choices make up together: within their choices and the rows, and never dearer."""

from __future__ import annotations

import numpy as np
import pytest

from assignment.problems import planted_instance
from meshwise.assignment.bounds.messages import cost_of, room_left
from meshwise.assignment.reductions.reduction import reduce_instance
from meshwise.assignment.search.recombination import recombined
from meshwise.assignment.search.repair import Repair

GO_ON = np.zeros(1, np.int8)


def repaired(network, seed):
    """A choice within the rows, for other costs of the nodes."""
    rng = np.random.default_rng(seed)
    repair = Repair.of(network._replace(cost=rng.uniform(0.0, 5000.0, len(network.cost))))
    while not repair.run(100, 60, rng):
        pass
    return repair.choice


def some_choices(room, count=4):
    """A network and choices within its rows, the best one first."""
    instance = planted_instance(3, num_nodes=300, num_edges=500, forbidden=0.1, room=room)
    network = reduce_instance(instance).network
    choices = [repaired(network, seed) for seed in range(count)]
    return network, sorted(choices, key=lambda choice: cost_of(network, choice))


@pytest.mark.parametrize("room", [0.9, 1.0, 1.3])
def test_a_recombination_takes_of_each_node_what_one_choice_gave_it_within_the_rows(room):
    network, choices = some_choices(room)
    prices = np.zeros(len(network.capacity))
    found, entries = recombined(network, choices, prices, np.random.default_rng(0), GO_ON)
    assert found is not None
    assert (found == np.stack(choices)).any(axis=0).all()
    assert (room_left(network, found) >= 0).all()
    assert cost_of(network, found) < cost_of(network, choices[0])
    assert entries >= len(network.matrices)


def test_one_choice_alone_stays():
    network, choices = some_choices(1.0, count=1)
    prices = np.zeros(len(network.capacity))
    found, _ = recombined(network, choices, prices, np.random.default_rng(0), GO_ON)
    np.testing.assert_array_equal(found, choices[0])


def test_a_flag_stops_it():
    network, choices = some_choices(1.0)
    prices, stop = np.zeros(len(network.capacity)), np.ones(1, np.int8)
    assert recombined(network, choices, prices, np.random.default_rng(0), stop)[0] is None
