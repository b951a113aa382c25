"""First solutions where choosing node by node ends at forbidden pairs or full rows."""

from __future__ import annotations

import numpy as np
import pytest

from assignment.problems import planted_instance
from meshwise.assignment.bounds.messages import follow_within, no_messages, room_left, sweep
from meshwise.assignment.instance import is_solution
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.options import SolverOptions
from meshwise.assignment.reductions.reduction import reduce_instance
from meshwise.assignment.search.repair import Repair
from meshwise.assignment.search.room import room_of

# Nodes, edges, share of forbidden pairs, room.
CASES = [(400, 700, 0.3, 1.0), (400, 900, 0.5, 1.1), (1500, 3000, 0.3, 1.0)]


def case(seed, num_nodes, num_edges, forbidden, room):
    return planted_instance(
        seed, num_nodes=num_nodes, num_edges=num_edges, forbidden=forbidden, room=room
    )


@pytest.mark.parametrize("size", CASES)
def test_repair_breaks_no_rule_at_last(size):
    instance = case(1, *size)
    reduction = reduce_instance(instance)
    repair, rng = Repair.of(reduction.network), np.random.default_rng(0)
    for _ in range(100):
        if repair.run(500, 60, rng):
            break
    assert is_solution(instance, reduction.expand(repair.choice).tolist())


def test_repair_is_needed():
    """What follows the messages node by node ends nowhere on some of these."""
    ends = 0
    for seed in range(5):
        network = reduce_instance(case(seed, *CASES[0])).network
        held = no_messages(network)
        sweep(True, network, held)
        sweep(False, network, held)
        ends += not follow_within(network, held, np.zeros(len(network.size), np.int64))
    assert ends


def test_the_room_that_repair_keeps_is_that_of_its_choice():
    reduction = reduce_instance(case(2, *CASES[0]))
    repair = Repair.of(reduction.network)
    repair.run(50, 60, np.random.default_rng(0))
    fresh = room_of(room_left(reduction.network, repair.choice))
    np.testing.assert_array_equal(repair.room.row, fresh.row)
    np.testing.assert_array_equal(repair.room.block, fresh.block)


def test_a_flag_stops_repair():
    stop = np.ones(1, np.int8)
    repair = Repair.of(reduce_instance(case(1, *CASES[0])).network, stop)
    before = repair.choice.copy()
    assert not repair.run(10**9, 60, np.random.default_rng(0))
    np.testing.assert_array_equal(repair.choice, before)


@pytest.mark.parametrize("room", [1.0, 1.1, 100.0])
def test_a_solution_is_found_and_bounded(room):
    """Also where no row of memory can bind but pairs are forbidden."""
    instance = case(4, *CASES[1][:3], room)
    answer = solve_instance(instance, time_limit_s=600, options=SolverOptions(small_columns=0))
    assert answer.choice is not None
    assert is_solution(instance, answer.choice)
    assert answer.cost is not None
    assert answer.bound <= answer.cost
