"""Streams in order, messages, stops, memory, deadlocks."""

from __future__ import annotations

import math

import pytest

from meshwise.errors import ProgramError
from meshwise.simulate.actions import Action, Flow, HostLinks, Transfer
from meshwise.simulate.engine import run_streams
from meshwise.simulate.measure import covered, exposed_s

HOSTS = [HostLinks(nic_bytes_per_s=10.0, link_bytes_per_s=40.0)] * 3
SECOND = (Flow(0, 1, 10.0),)


def test_nothing_to_do_takes_no_time():
    run = run_streams([[], []], [], HOSTS, [5, 7])
    assert run.makespan_s == 0.0
    assert run.memory == (((0.0, 5),), ((0.0, 7),))


def test_a_message_without_flows_arrives_when_it_is_made():
    streams = [[Action("a", 2.0, (), (0,))], [Action("b", 1.0, (0,))]]
    run = run_streams(streams, [Transfer("m", 0, 1)], HOSTS)
    assert run.start_s == ((0.0,), (2.0,))
    assert (run.transfer_start_s, run.transfer_end_s) == ((2.0,), (2.0,))


def test_a_mesh_goes_on_while_its_message_is_on_the_way():
    streams = [
        [Action("a", 2.0, (), (0,)), Action("more", 5.0)],
        [Action("b", 1.0), Action("c", 1.0, (0,))],
    ]
    run = run_streams(streams, [Transfer("m", 0, 1, SECOND)], HOSTS)
    assert run.start_s == ((0.0, 2.0), (0.0, 3.0))
    assert exposed_s(streams, [Transfer("m", 0, 1, SECOND)], run) == (0.0, 1.0)


def test_a_blocking_message_waits_for_the_receiver_and_stops_both():
    streams = [
        [Action("a", 2.0, (), (0,)), Action("more", 5.0)],
        [Action("b", 3.0), Action("other", 1.0), Action("c", 1.0, (0,))],
    ]
    transfers = [Transfer("m", 0, 1, SECOND, blocking=True)]
    run = run_streams(streams, transfers, HOSTS)
    assert (run.transfer_start_s, run.transfer_end_s) == ((3.0,), (4.0,))
    assert run.start_s == ((0.0, 4.0), (0.0, 4.0, 5.0))
    # From 2 to 3 mesh 0 waits for mesh 1, not for the transfer.
    assert exposed_s(streams, transfers, run) == (1.0, 1.0)


def test_two_meshes_that_send_to_each_other_at_once_do_not_lock():
    streams = [
        [Action("a", 1.0, (), (0,)), Action("b", 1.0, (1,))],
        [Action("c", 1.0, (), (1,)), Action("d", 1.0, (0,))],
    ]
    transfers = [
        Transfer("there", 0, 1, SECOND, blocking=True),
        Transfer("back", 1, 0, (Flow(1, 0, 20.0),), blocking=True),
    ]
    run = run_streams(streams, transfers, HOSTS)
    assert run.transfer_end_s == (2.0, 3.0)
    assert run.start_s == ((0.0, 3.0), (0.0, 3.0))


def test_actions_without_duration_run_in_order_at_one_instant():
    streams = [[Action("a", 0.0, (), (0,)), Action("b", 0.0, (1,))], [Action("c", 0.0, (0,), (1,))]]
    run = run_streams(streams, [Transfer("x", 0, 1), Transfer("y", 1, 0)], HOSTS)
    assert run.start_s == ((0.0, 0.0), (0.0,))


def test_memory_at_one_instant_is_freed_before_it_is_taken():
    streams = [[Action("a", 1.0, (), (), 8, -8), Action("b", 1.0, (), (), 8, -8)]]
    assert run_streams(streams, [], [], [2]).memory == (
        ((0.0, 2), (0.0, 10), (1.0, 2), (1.0, 10), (2.0, 2)),
    )


def test_a_deadlock_names_who_waits_for_what():
    streams = [
        [Action("B0", 1.0, (1,)), Action("F1", 1.0, (), (0,))],
        [Action("F0", 1.0), Action("F1'", 1.0, (0,)), Action("B0'", 1.0, (), (1,))],
        [Action("lone", 1.0, (2,))],
    ]
    transfers = [Transfer("x1", 0, 1), Transfer("g0", 1, 0), Transfer("z", 0, 2)]
    with pytest.raises(ProgramError) as caught:
        run_streams(streams, transfers, HOSTS)
    assert str(caught.value) == (
        "deadlock: on mesh 0 B0 waits for g0, which B0' on mesh 1 makes; "
        "on mesh 1 F1' waits for x1, which F1 on mesh 0 makes; "
        "on mesh 2 lone waits for z, which nobody makes"
    )


@pytest.mark.parametrize(
    ("action", "transfer", "message"),
    [
        (Action("a", -1.0), Transfer("t", 0, 0), "a on mesh 0 takes -1.0 s"),
        (Action("a", math.nan), Transfer("t", 0, 0), "a on mesh 0 takes nan s"),
        (Action("a", math.inf), Transfer("t", 0, 0), "a on mesh 0 takes inf s"),
        (Action("a", 1.0, (1,)), Transfer("t", 0, 0), "a on mesh 0 names transfer 1 of 1"),
        (Action("a", 1.0, (), (-1,)), Transfer("t", 0, 0), "a on mesh 0 names transfer -1 of 1"),
        (
            Action("a", 1.0, (0,)),
            Transfer("t", 0, 1),
            "a on mesh 0 waits for t, which goes to mesh 1",
        ),
        (Action("a", 1.0, (), (0,)), Transfer("t", 1, 0), "makes t, which leaves from mesh 1"),
        (Action("a", 1.0, (), (0, 0)), Transfer("t", 0, 0), "makes t a second time"),
        (Action("a", 1.0), Transfer("t", 0, 2), "t goes from mesh 0 to mesh 2; there are 2"),
        (
            Action("a", 1.0),
            Transfer("t", 0, 1, (Flow(0, 3, 1.0),)),
            "from host 0 to host 3; there are 3",
        ),
        (Action("a", 1.0), Transfer("t", 0, 1, (Flow(0, 1, -1.0),)), "t has an impossible flow"),
        (Action("a", 1.0), Transfer("t", 0, 1, (Flow(0, 1, math.nan),)), "impossible flow"),
        (Action("a", 1.0), Transfer("t", 0, 1, (Flow(0, 1, 1.0, -1.0),)), "impossible flow"),
        (Action("a", 1.0), Transfer("t", 0, 1, (Flow(0, 1, 1.0, 0.0, 0.0),)), "impossible flow"),
    ],
)
def test_impossible_input_is_refused_by_name(action, transfer, message):
    with pytest.raises(ProgramError, match=message):
        run_streams([[action], []], [transfer], HOSTS)


def test_what_intervals_cover_together_is_counted_once():
    assert covered([(0.0, 2.0), (1.0, 3.0), (5.0, 9.0)], 0.5, 6.0) == 3.5
    assert covered([], 0.0, 1.0) == 0.0
    assert covered([(3.0, 4.0), (0.0, 10.0)], 2.0, 5.0) == 3.0
