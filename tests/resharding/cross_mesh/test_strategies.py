"""Ways to send a box: the closed forms, and boxes as hosts see them."""

from __future__ import annotations

import pytest
from evaluation.alpacomm.cases import random_case

from meshwise.graph.layout import parse_layout
from meshwise.resharding.cross_mesh.host_tasks import HostedMesh, HostTask, host_tasks, hosted_mesh
from meshwise.resharding.cross_mesh.legs import legs
from meshwise.resharding.cross_mesh.strategies import (
    BROADCAST,
    GATHERED,
    GLOBAL_GATHERED,
    INSIDE_PART,
    NUM_CHUNKS,
    SEND_RECV,
    best_chunk_bytes,
    seconds,
)
from meshwise.resharding.tiles import boxes, num_elements

RATE = 2.0
T = 100 / RATE


def box(hosts, devices):
    return HostTask(100.0, (0,), tuple(range(1, hosts + 1)), (devices,) * hosts)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("hosts", [1, 2, 3, 7])
def test_closed_forms(hosts, devices):
    task = box(hosts, devices)
    assert seconds(SEND_RECV, task, RATE) == pytest.approx(hosts * devices * T)
    assert seconds(GATHERED, task, RATE) == pytest.approx(hosts * T)
    # The published 2 t is what it comes to with many hosts.
    ring = 0 if hosts == 1 else (hosts - 2 + 1 / devices) / hosts
    assert seconds(GLOBAL_GATHERED, task, RATE) == pytest.approx(T + T * ring)
    assert seconds(BROADCAST, task, RATE) == pytest.approx(T + (hosts - 1) * T / NUM_CHUNKS)
    assert seconds(BROADCAST, task, RATE, 50.0) == pytest.approx(T + (hosts - 1) * T / 2)


@pytest.mark.parametrize("number", range(40))
def test_boxes_of_hosts_are_those_of_devices(number):
    case = random_case(number)
    tasks = case.tasks()
    assert all(task.senders and task.receivers for task in tasks)
    # Whatever the layouts: every destination device is sent its tile once.
    needed = sum(task.num_bytes * sum(task.devices) for task in tasks)
    mesh = hosted_mesh(*case.destination)
    tiles = boxes(case.shape, case.after, mesh.sizes)
    assert needed == 4 * sum(map(num_elements, tiles))


def test_a_host_of_both_meshes_is_not_sent_what_it_has():
    place = (parse_layout("S0"), hosted_mesh(2, 1))
    there = (parse_layout("R"), hosted_mesh(1, 2, first_host=1))
    # Host 1 has the second half already.
    assert host_tasks((8,), 4, place, there) == (HostTask(16.0, (0,), (1,), (2,)),)
    with pytest.raises(ValueError, match="has 4 devices, got hosts of 3"):
        HostedMesh(sizes=(2, 2), hosts=(0, 0, 1))


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("chunk_s", [0.1, 1.0, 7.0])
def test_chunks_have_the_best_size(hosts, chunk_s):
    task = box(hosts, 2)

    def ends_s(count):
        inside_s = INSIDE_PART * T / count
        return seconds(BROADCAST, task, RATE, 100.0 / count) + inside_s + count * chunk_s

    count = round(100.0 / best_chunk_bytes([task], RATE, chunk_s))
    assert ends_s(count) <= 1.02 * min(map(ends_s, range(1, NUM_CHUNKS + 1)))
    assert (count > 1) == (hosts > 1 or chunk_s < 1)
    # Boxes that follow each other on the same chain fill it once.
    many = best_chunk_bytes([task] * 4, RATE, chunk_s)
    assert count == 1 or many == pytest.approx(2 * best_chunk_bytes([task], RATE, chunk_s))


def test_unknown_strategies_are_refused():
    for function in (
        lambda: seconds("pigeon", box(1, 1), 1.0),
        lambda: legs("", ((0, 1),), [[1]], 0, 1),
    ):
        with pytest.raises(ValueError, match=r"no strategy .*; there are send/recv, local all-g"):
            function()
