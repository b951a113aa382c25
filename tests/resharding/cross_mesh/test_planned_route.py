"""Routes of the four strategies: exact values, and bytes between hosts as the closed forms say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from evaluation.alpacomm.cases import CASES
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.routes import carried_out, elements_between, part, placements
from meshwise.resharding.cross_mesh.cross_mesh_plan import NAIVE
from meshwise.resharding.cross_mesh.host_tasks import host_task
from meshwise.resharding.cross_mesh.planned_route import planned_route
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.resharding.cross_mesh.strategies import (
    BROADCAST,
    GATHERED,
    GLOBAL_GATHERED,
    SEND_RECV,
    STRATEGIES,
)
from meshwise.resharding.cross_mesh.unit_tasks import unit_tasks
from meshwise.resharding.route import route_once
from meshwise.resharding.tiles import num_elements
from meshwise.resharding.verify_route import verify_route

RATE = 1e3


def crossing(source, destination, hosts, itemsize=1):
    """Unit tasks between hosts, as hosts see them."""
    found = (host_task(unit, hosts, itemsize) for unit in unit_tasks(source, destination))
    return [task for task in found if task is not None]


def received(strategy, tasks):
    """What each host receives, by the closed forms."""
    found = Counter()
    for task in tasks:
        for host, devices in zip(task.receivers, task.devices, strict=True):
            found[host] += int(task.num_bytes) * (devices if strategy == SEND_RECV else 1)
    return found


def assert_sends(strategy, whole, source, destination, hosts, **options):
    sending = Sending(strategy=strategy, bytes_per_s=RATE, **options)
    route = planned_route(source, destination, hosts, 1, sending)
    verify_route(route, source, destination)
    values = carried_out(route, whole, source)
    for device, box in destination.items():
        if num_elements(box):
            assert np.array_equal(values[device], part(whole, box))
    came = Counter()
    for (_, host), count in elements_between(route, hosts).items():
        came[host] += count
    assert came == received(strategy, crossing(source, destination, hosts))
    moved = sum(np.prod(m.shape) for phase in route.phases for m in phase.moves)
    assert moved == route.crossing_elements + route.copied_elements
    return route


@settings(max_examples=150, deadline=None)
@given(placements(), st.sampled_from(list(STRATEGIES)), st.sampled_from([1e-5, 1e-3, 1.0]))
def test_every_device_gets_its_tile_and_hosts_what_closed_forms_say(case, strategy, chunk_s):
    shape, source, destination, hosts = case
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    assert_sends(strategy, whole, source, destination, hosts, chunk_s=chunk_s)


def test_a_device_that_waits_for_what_comes_to_itself_needs_no_signal():
    source = {0: ((0, 1),), 1: ((2, 3),), 3: ((1, 2),), 4: ((3, 4),)}
    destination = dict.fromkeys(range(3), ((0, 4),))
    hosts = [0, 0, 1, 1, 2, 2]
    route = assert_sends(GLOBAL_GATHERED, np.arange(4), source, destination, hosts, chunk_s=1e-5)
    cuts = [(cut.device, cut.after) for phase in route.phases for cut in phase.cuts if cut.after]
    came = {move.result: move.destination for phase in route.phases for move in phase.moves}
    assert any(came.get(value) == device for device, after in cuts for value in after)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_published_cases(case, strategy):
    shape = (48, 16, 20) if case.name == "6" else (16, 16, 8)
    whole = np.arange(np.prod(shape)).reshape(shape)
    assert_sends(strategy, whole, *replace(case, shape=shape).placements(), chunk_s=1e-3)


def test_chunks_of_a_broadcast_go_on_while_the_next_ones_come():
    source, destination = {0: ((0, 64),)}, dict.fromkeys(range(1, 7), ((0, 64),))
    hosts = [0, 1, 1, 2, 2, 3, 3]
    whole = np.arange(64)
    route = assert_sends(BROADCAST, whole, source, destination, hosts, chunk_s=2e-3)
    count = len(route.phases[0].cuts[0].parts)
    assert count == 8
    ways = [
        [(hosts[m.source], hosts[m.destination]) for m in phase.moves] for phase in route.phases
    ]
    chain = [(0, 1), (1, 2), (2, 3)]
    for n, found in enumerate(ways[: count + 2]):
        between = sorted(way for way in found if way in chain)
        assert between == [way for hop, way in enumerate(chain) if 0 <= n - hop < count]
    # Each host gets it once, and its other device gets each chunk behind the first one.
    assert elements_between(route, hosts) == dict.fromkeys(chain, 64)
    for n, found in enumerate(ways):
        inside = sorted(way for way in found if way not in chain)
        assert inside == [(h, h) for h in (1, 2, 3) if 0 <= n - h < count]


def test_gathered_devices_are_sent_equal_pieces():
    source, destination = {0: ((0, 24),)}, dict.fromkeys(range(1, 7), ((0, 24),))
    hosts = [0, 1, 1, 1, 2, 2, 2]
    whole = np.arange(24)
    for strategy, size in ((GATHERED, 8), (GLOBAL_GATHERED, 4)):
        route = assert_sends(strategy, whole, source, destination, hosts)
        sent = [m for phase in route.phases for m in phase.moves if m.source == 0]
        assert [m.shape for m in sent] == [(size,)] * 6
        assert sorted(m.destination for m in sent) == [*range(1, 7)]


def test_devices_of_a_host_share_the_work_of_sending():
    source = dict.fromkeys(range(4), ((0, 32),))
    destination = {4 + n: ((8 * n, 8 * n + 8),) for n in range(4)}
    hosts = [0] * 4 + [1] * 4
    for strategy in STRATEGIES:
        route = assert_sends(strategy, np.arange(32), source, destination, hosts)
        assert sorted(m.source for m in route.phases[0].moves) == [0, 1, 2, 3]


def test_what_follows_something_that_waits_waits_for_the_same():
    # 64 boxes of two senders: four of the one to a host, four of the other to it, and so on.
    source, destination, hosts = replace(CASES[3], shape=(64, 64, 1)).placements()
    sending = Sending(bytes_per_s=RATE, algorithm=NAIVE)
    route = planned_route(source, destination, hosts, 4, sending)
    cuts = {value: cut for phase in route.phases for cut in phase.cuts for value in cut.results}
    signals = {s.result: s for phase in route.phases for s in phase.signals}
    came = {move.result: move for phase in route.phases for move in phase.moves}
    free = 0
    for phase in route.phases:
        for move in phase.moves:
            awaited = [came[signals[value].value] for value in cuts[move.value].after]
            free += not awaited
            for other in awaited:
                # It is behind what shares its port on another way.
                assert (other.source, other.destination) != (move.source, move.destination)
                shared = hosts[other.source] == hosts[move.source]
                assert shared or hosts[other.destination] == hosts[move.destination]
    assert len(came) == 64
    assert free == 4


@settings(max_examples=60, deadline=None)
@given(placements(), st.sampled_from(list(STRATEGIES)))
def test_inside_one_host_each_tile_is_sent_once(case, strategy):
    _, source, destination, hosts = case
    alone = [0] * len(hosts)
    sending = Sending(strategy=strategy, bytes_per_s=RATE)
    found = planned_route(source, destination, alone, 4, sending)
    assert found == route_once(source, destination, alone)


@settings(max_examples=100, deadline=None)
@given(placements())
def test_each_tile_once_is_a_route_too(case):
    shape, source, destination, hosts = case
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    route = route_once(source, destination, hosts)
    verify_route(route, source, destination)
    values = carried_out(route, whole, source)
    for device, box in destination.items():
        if num_elements(box):
            assert np.array_equal(values[device], part(whole, box))


def test_plans_do_not_depend_on_the_process_that_makes_them():
    case = CASES[5]
    args = (*case.placements(), 4, Sending(bytes_per_s=RATE * 1e6))
    assert planned_route(*args) == planned_route(*args)
