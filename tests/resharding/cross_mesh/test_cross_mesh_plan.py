"""Senders and order: brute force, the bound of the network cards, the published cases."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from evaluation.alpacomm.cases import CASES, NIC_BYTES_PER_S, ONE_TO_MANY, random_case
from evaluation.alpacomm.simulated import simulated

from meshwise.errors import ClusterError
from meshwise.graph.layout import parse_layout
from meshwise.resharding.cross_mesh.cross_mesh_plan import (
    ALGORITHMS,
    BEST,
    DIVIDED,
    NAIVE,
    WHOLE,
    bound_s,
    cross_mesh_plan,
)
from meshwise.resharding.cross_mesh.depth_first import depth_first, least_s
from meshwise.resharding.cross_mesh.host_tasks import HostTask, host_tasks, hosted_mesh
from meshwise.resharding.cross_mesh.ordering import (
    Job,
    greedy,
    in_order,
    load_balanced,
    makespan_s,
    naive,
)
from meshwise.resharding.cross_mesh.strategies import (
    BROADCAST,
    GATHERED,
    GLOBAL_GATHERED,
    SEND_RECV,
    STRATEGIES,
)
from meshwise.resharding.cross_mesh.unit_tasks import unit_tasks
from meshwise.resharding.tiles import boxes
from meshwise.simulate.links import HostLinks

RATE = NIC_BYTES_PER_S


def random_tasks(rng, count, num_senders=3, num_receivers=3):
    """Boxes of any size with any senders and receivers."""
    found = []
    for _ in range(count):
        senders = rng.sample(range(num_senders), rng.randint(1, 2))
        receivers = rng.sample(range(9, 9 + num_receivers), rng.randint(1, 2))
        size = float(rng.randint(1, 6))
        found.append(
            HostTask(size, tuple(sorted(senders)), tuple(sorted(receivers)), (1,) * len(receivers))
        )
    return found


def jobs_of(tasks):
    return [Job(task.num_bytes, task.senders, task.receivers) for task in tasks]


def brute_force(jobs):
    """The best of all orders with all choices of senders."""
    best = float("inf")
    for order in itertools.permutations(range(len(jobs))):
        for senders in itertools.product(*(jobs[n].senders for n in order)):
            best = min(best, makespan_s(in_order(jobs, zip(order, senders, strict=True))))
    return best


def assert_possible(schedule, jobs):
    """All jobs once, none beside another on a port."""
    assert sorted(t.job for t in schedule) == list(range(len(jobs)))
    for t in schedule:
        assert t.sender in jobs[t.job].senders
        assert t.end_s == pytest.approx(t.start_s + jobs[t.job].duration_s)
    for a, b in itertools.combinations(schedule, 2):
        if a.sender == b.sender or set(jobs[a.job].receivers) & set(jobs[b.job].receivers):
            assert a.end_s <= b.start_s + 1e-9 or b.end_s <= a.start_s + 1e-9


@pytest.mark.parametrize("seed", range(24))
def test_the_best_is_that_of_brute_force(seed):
    rng = random.Random(seed)
    tasks = random_tasks(rng, 4 + seed % 2)
    jobs = jobs_of(tasks)
    expected = brute_force(jobs)
    found = depth_first(jobs)
    assert found.is_best
    assert makespan_s(found.schedule) == pytest.approx(expected)
    assert least_s(jobs) <= expected + 1e-9
    plan = cross_mesh_plan(tasks, 1.0, GATHERED, WHOLE)
    many = jobs_of([t._replace(num_bytes=t.num_bytes * len(t.receivers)) for t in tasks])
    assert plan.makespan_s == pytest.approx(brute_force(many))
    for schedule in (naive(jobs), load_balanced(jobs), greedy(jobs), found.schedule):
        assert_possible(schedule, jobs)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_six_is_that_of_brute_force(seed):
    jobs = jobs_of(random_tasks(random.Random(100 + seed), 6))
    found = depth_first(jobs)
    assert found.is_best
    assert makespan_s(found.schedule) == pytest.approx(brute_force(jobs))


def check(tasks, strategy):
    """Plans of all algorithms: possible, none below the bound, the best not above any."""
    plans = {name: cross_mesh_plan(tasks, RATE, strategy, name) for name in ALGORITHMS}
    for plan in plans.values():
        sent = [0.0] * len(tasks)
        for t in plan.transfers:
            sent[t.task] += t.num_bytes
        assert sent == pytest.approx([task.num_bytes for task in tasks])
        assert plan.bound_s == bound_s(tasks, RATE)
        assert plan.makespan_s >= plan.bound_s * (1 - 1e-9)
        assert plan.makespan_s >= plans[BEST].makespan_s * (1 - 1e-12)
        parts = [
            Job(t.end_s - t.start_s, (t.sender,), tasks[t.task].receivers) for t in plan.transfers
        ]
        if len(parts) <= 40:
            timed = [t._replace(task=n) for n, t in enumerate(plan.transfers)]
            order = in_order(parts, ((t.task, t.sender) for t in timed))
            assert makespan_s(order) == pytest.approx(plan.makespan_s)
    return plans


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_published_cases(case):
    tasks = case.tasks()
    best = {name: cross_mesh_plan(tasks, RATE, name) for name in STRATEGIES}
    plan = best[BROADCAST]
    assert check(tasks, BROADCAST)[BEST] == plan
    assert plan.makespan_s <= 1.05 * plan.bound_s
    assert all(plan.makespan_s <= other.makespan_s for other in best.values())
    # What was published: broadcast ahead in these, and behind in none.
    before = min(
        cross_mesh_plan(tasks, RATE, way, NAIVE).makespan_s for way in (GATHERED, GLOBAL_GATHERED)
    )
    if case.name in ("3", "4", "9"):
        assert before >= 1.4 * plan.makespan_s
    if case.name in ("7", "8"):
        # The ring begins before all parts are sent; after that it would be 1.5.
        assert before >= 1.1 * plan.makespan_s
    if case.name == "1":
        assert before == pytest.approx(plan.makespan_s)


def test_from_one_device_to_many_hosts_a_broadcast_alone_stays_flat():
    once_s = ONE_TO_MANY[0].num_bytes / RATE
    for case in ONE_TO_MANY:
        hosts, devices = case.destination
        plans = {name: cross_mesh_plan(case.tasks(), RATE, name) for name in STRATEGIES}
        assert plans[SEND_RECV].makespan_s == pytest.approx(hosts * devices * once_s)
        assert plans[GATHERED].makespan_s == pytest.approx(hosts * once_s)
        assert plans[BROADCAST].makespan_s <= 1.03 * once_s


def test_random_cases_are_near_the_bound():
    for number in range(200):
        tasks = random_case(number).tasks()
        plan = cross_mesh_plan(tasks, RATE)
        assert plan.makespan_s <= 1.05 * plan.bound_s, number


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_best_is_never_above_another(number, strategy):
    check(random_case(number).tasks(), strategy)


def test_receivers_that_overlap_are_near_the_bound_too():
    # Three hosts, of which each two need a box: no two boxes can be sent at once.
    tasks = [HostTask(1.0, (n,), pair, (1, 1)) for n, pair in enumerate([(7, 8), (8, 9), (7, 9)])]
    plans = check(tasks, BROADCAST)
    assert plans[BEST].bound_s * RATE == pytest.approx(2.0)
    # A box is not sent to one of its hosts now and to the other later.
    assert plans[BEST].makespan_s * RATE == pytest.approx(3.03)


def enlarged(case):
    """The case with so many elements that parts of boxes are hardly rounded."""
    return replace(case, shape=tuple(64 * size for size in case.shape))


@pytest.mark.parametrize("case", [*CASES, *(enlarged(random_case(n)) for n in range(12))])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_simulated_routes_end_when_planned(case, strategy):
    plan = cross_mesh_plan(case.tasks(), RATE, strategy)
    # What passes inside hosts is neglected by the plan.
    hosts = [HostLinks(nic_bytes_per_s=RATE, link_bytes_per_s=1e6 * RATE)] * 8
    makespan = simulated(case, plan, hosts).makespan_s
    assert plan.bound_s * (1 - 1e-6) <= makespan <= plan.makespan_s * 1.01
    # Boxes that follow each other on one way fill the chain or ring once.
    assert makespan >= plan.makespan_s * 0.95


def arrived(case, plan):
    """For each destination host the elements that it has in the end; -1 where nothing came."""
    whole = np.arange(np.prod(case.shape)).reshape(case.shape)
    meshes = [
        boxes(case.shape, case.before, case.source),
        boxes(case.shape, case.after, case.destination),
    ]
    first = len(meshes[0])
    tasks = unit_tasks(dict(enumerate(meshes[0])), dict(enumerate(meshes[1], first)))
    found = {}
    for transfer in plan.transfers:
        at = tuple(slice(*interval) for interval in tasks[transfer.task].box)
        values = whole[at].reshape(-1)
        # Boundaries in bytes are rounded down to elements.
        start = round(transfer.first_byte * 1e3) // 4000
        stop = round((transfer.first_byte + transfer.num_bytes) * 1e3) // 4000
        for host in plan.tasks[transfer.task].receivers:
            got = found.setdefault(host, np.full(case.shape, -1))
            part = got[at].reshape(-1)
            assert (part[start:stop] == -1).all(), "an element comes twice"
            part[start:stop] = values[start:stop]
            got[at] = part.reshape(got[at].shape)
    return whole, meshes[1], found


@pytest.mark.parametrize("algorithm", [WHOLE, DIVIDED])
def test_every_device_gets_exactly_its_tile(algorithm):
    for number in range(30):
        case = random_case(number)
        whole, tiles, found = arrived(
            case, cross_mesh_plan(case.tasks(), RATE, algorithm=algorithm)
        )
        hosts = hosted_mesh(*case.destination, first_host=case.source[0]).hosts
        for host, box in zip(hosts, tiles, strict=True):
            at = tuple(slice(*interval) for interval in box)
            if whole[at].size:
                assert np.array_equal(found[host][at], whole[at])


def test_many_boxes_are_planned_without_a_search():
    places = [hosted_mesh(4, 8, first_host=first) for first in (0, 4)]
    layouts = parse_layout("R S01"), parse_layout("S01 R")
    tasks = host_tasks((64, 64), 4, *zip(layouts, places, strict=True))
    assert len(tasks) == 1024
    jobs = jobs_of(tasks)
    found = depth_first(jobs)
    assert not found.is_best
    assert sorted(t.job for t in found.schedule) == list(range(1024))
    plan = cross_mesh_plan(tasks, RATE)
    assert plan.makespan_s <= 1.05 * plan.bound_s


def test_nothing_takes_no_time():
    plan = cross_mesh_plan((), RATE)
    assert plan.transfers == ()
    assert plan.makespan_s == plan.bound_s == 0


def test_plans_are_the_same_every_time():
    for number in range(5):
        tasks = random_case(number).tasks()
        assert cross_mesh_plan(tasks, RATE) == cross_mesh_plan(tasks, RATE)


def test_bad_input_is_refused():
    tasks = CASES[0].tasks()
    with pytest.raises(ClusterError, match="bandwidth of 0 bytes/s"):
        cross_mesh_plan(tasks, 0)
    with pytest.raises(ValueError, match="no algorithm 'luck'; there are naive, load balance"):
        cross_mesh_plan(tasks, RATE, algorithm="luck")
    with pytest.raises(ValueError, match="no strategy 'pigeon'"):
        cross_mesh_plan(tasks, RATE, "pigeon")
