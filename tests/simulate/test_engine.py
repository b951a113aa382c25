"""Streams in order, messages, stops, memory, deadlocks."""

from __future__ import annotations

import numpy as np
import pytest

from meshwise.simulate.kernels.exposure import covered_s
from meshwise.simulate.links import Flow, HostLinks
from simulate.by_name import Action, Transfer, outcome

HOSTS = [HostLinks(nic_bytes_per_s=10.0, link_bytes_per_s=40.0)] * 3
SECOND = (Flow(0, 1, 10.0),)


def test_nothing_to_do_takes_no_time():
    run = outcome([[], []], [], HOSTS, [5, 7]).run
    assert run.makespan_s == 0.0
    assert [run.memory_steps(mesh) for mesh in (0, 1)] == [((0.0, 5),), ((0.0, 7),)]


def test_a_message_without_flows_arrives_when_it_is_made():
    streams = [[Action(2.0, (), (0,))], [Action(1.0, (0,))]]
    found = outcome(streams, [Transfer(0, 1)], HOSTS)
    assert found.starts == [[0.0], [2.0]]
    assert found.transfer_times == [(2.0, 2.0)]


def test_a_mesh_goes_on_while_its_message_is_on_the_way():
    streams = [
        [Action(2.0, (), (0,)), Action(5.0)],
        [Action(1.0), Action(1.0, (0,))],
    ]
    found = outcome(streams, [Transfer(0, 1, SECOND)], HOSTS)
    assert found.starts == [[0.0, 2.0], [0.0, 3.0]]
    assert found.exposed_s == (0.0, 1.0)


def test_a_blocking_message_waits_for_the_receiver_and_stops_both():
    streams = [
        [Action(2.0, (), (0,)), Action(5.0)],
        [Action(3.0), Action(1.0), Action(1.0, (0,))],
    ]
    found = outcome(streams, [Transfer(0, 1, SECOND, blocking=True)], HOSTS)
    assert found.transfer_times == [(3.0, 4.0)]
    assert found.starts == [[0.0, 4.0], [0.0, 4.0, 5.0]]
    # From 2 to 3 mesh 0 waits for mesh 1, not for the transfer.
    assert found.exposed_s == (1.0, 1.0)


def test_two_meshes_that_send_to_each_other_at_once_do_not_lock():
    streams = [
        [Action(1.0, (), (0,)), Action(1.0, (1,))],
        [Action(1.0, (), (1,)), Action(1.0, (0,))],
    ]
    there = Transfer(0, 1, SECOND, blocking=True)
    back = Transfer(1, 0, (Flow(1, 0, 20.0),), blocking=True)
    found = outcome(streams, [there, back], HOSTS)
    assert [end for _, end in found.transfer_times] == [2.0, 3.0]
    assert found.starts == [[0.0, 3.0], [0.0, 3.0]]


def test_actions_without_duration_run_in_order_at_one_instant():
    streams = [[Action(0.0, (), (0,)), Action(0.0, (1,))], [Action(0.0, (0,), (1,))]]
    found = outcome(streams, [Transfer(0, 1), Transfer(1, 0)], HOSTS)
    assert found.starts == [[0.0, 0.0], [0.0]]


def test_memory_at_one_instant_is_freed_before_it_is_taken():
    streams = [[Action(1.0, (), (), 8, -8), Action(1.0, (), (), 8, -8)]]
    run = outcome(streams, [], [], [2]).run
    assert run.memory_steps(0) == ((0.0, 2), (0.0, 10), (1.0, 2), (1.0, 10), (2.0, 2))


def test_a_deadlock_shows_who_waits_for_what_and_the_rest_goes_on():
    streams = [
        [Action(1.0, (1,)), Action(1.0, (), (0,))],
        [Action(1.0), Action(1.0, (0,)), Action(1.0, (), (1,))],
        [Action(1.0, (2,))],
        [Action(1.0), Action(4.0)],
    ]
    run = outcome(streams, [Transfer(0, 1), Transfer(1, 0), Transfer(0, 2)], HOSTS).run
    assert list(run.stuck()) == [(0, 1), (1, 0), (2, 2)]
    assert run.num_ended.tolist() == [0, 1, 0, 2]
    assert run.makespan_s == 5.0


@pytest.mark.parametrize(
    ("intervals", "times", "seconds"),
    [
        ([(0.0, 2.0), (1.0, 3.0), (5.0, 9.0)], (0.5, 6.0), 3.5),
        ([], (0.0, 1.0), 0.0),
        ([(3.0, 4.0), (0.0, 10.0)], (2.0, 5.0), 3.0),
    ],
)
def test_what_intervals_cover_together_is_counted_once(intervals, times, seconds):
    ends = np.array(intervals, np.float64).reshape(-1, 2)
    assert covered_s(ends[:, 0].copy(), ends[:, 1].copy(), *times) == seconds


def test_what_takes_for_ever_does_not_end():
    slow = [HostLinks(nic_bytes_per_s=5e-324, link_bytes_per_s=1.0)] * 2
    streams = [[Action(1.0, (), (0,))], [Action(1.0, (0,))]]
    run = outcome(streams, [Transfer(0, 1, SECOND)], slow).run
    assert list(run.stuck()) == [(1, 0)]
