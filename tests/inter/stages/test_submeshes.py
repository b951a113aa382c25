"""Shapes of submeshes, and appendix A: every admissible choice of them has a place."""

from __future__ import annotations

import itertools

import pytest

from doubles.submesh_kinds import HostKind, mixed_submeshes, uniform_submeshes
from meshwise.errors import ClusterError
from meshwise.inter.stages.placement import place_stages


def shapes(num_hosts, devices_per_host, **options):
    found = uniform_submeshes(num_hosts, devices_per_host, 1.0, **options)
    return [m.shape for m in found]


def test_shapes_of_the_paper():
    inside = [(1, 1), (1, 2), (1, 4), (1, 8)]
    assert shapes(4, 8, all_host_counts=True) == [*inside, (2, 8), (3, 8), (4, 8)]
    assert shapes(6, 8) == [*inside, (2, 8), (4, 8), (6, 8)]
    assert shapes(6, 8, largest_num_hosts=2) == [*inside, (2, 8)]
    assert shapes(1, 1) == [(1, 1)]


def test_hosts_that_are_no_power_of_two_are_refused():
    with pytest.raises(ClusterError, match=r"hosts of 6 devices: .*use mixed_submeshes"):
        uniform_submeshes(2, 6, 1.0)


def multisets(kinds, total):
    """Every choice of shapes, with repetition, of at most so many devices."""
    if not kinds:
        yield ()
        return
    (hosts, devices), rest = kinds[0], kinds[1:]
    for count in range(total // (hosts * devices) + 1):
        for others in multisets(rest, total - count * hosts * devices):
            yield ((hosts, devices),) * count + others


def devices_of(first, shape):
    return range(first, first + shape[0] * shape[1])


def check_places(chosen, num_hosts, devices_per_host):
    places = place_stages(chosen, num_hosts, devices_per_host)
    taken = [d for p, s in zip(places, chosen, strict=True) for d in devices_of(p, s)]
    assert len(set(taken)) == len(taken)
    assert all(0 <= d < num_hosts * devices_per_host for d in taken)
    for place, shape in zip(places, chosen, strict=True):
        # Whole hosts, or an aligned part of one host.
        assert place % shape[1] == 0


@pytest.mark.parametrize(
    ("num_hosts", "devices_per_host"), [(1, 8), (2, 4), (3, 4), (4, 2), (3, 8)]
)
def test_every_choice_has_a_place(num_hosts, devices_per_host):
    kinds = shapes(num_hosts, devices_per_host, all_host_counts=True)
    tried = 0
    for chosen in multisets(kinds, num_hosts * devices_per_host):
        for order in (chosen, chosen[::-1], chosen[::2] + chosen[1::2]):
            check_places(order, num_hosts, devices_per_host)
            tried += 1
    assert tried > 20


def test_every_order_has_a_place():
    for chosen in multisets(shapes(2, 4), 8):
        if len(chosen) <= 6:
            for order in set(itertools.permutations(chosen)):
                check_places(order, 2, 4)


def test_neighbours_share_a_host():
    assert place_stages([(1, 4), (1, 4), (1, 8)], 2, 8) == (0, 4, 8)
    assert place_stages([(1, 8), (1, 4), (1, 2), (1, 2)], 2, 8) == (0, 8, 12, 14)
    assert place_stages([(1, 1), (1, 2), (1, 1)], 1, 4) == (2, 0, 3)
    assert place_stages([(1, 4), (2, 8), (1, 4)], 3, 8) == (0, 8, 4)


def test_too_many_devices_and_odd_shapes_are_refused():
    with pytest.raises(ClusterError, match="stages need 12 devices; the cluster has 8"):
        place_stages([(1, 8), (1, 4)], 1, 8)
    with pytest.raises(ClusterError, match=r"submesh \(1, 3\) is neither whole hosts of 8"):
        place_stages([(1, 3)], 1, 8)
    with pytest.raises(ClusterError, match=r"submesh \(2, 4\) is neither"):
        place_stages([(2, 4)], 2, 8)


def test_kinds_of_a_mixed_cluster():
    hosts = [
        HostKind(kind="a", num_devices=2, memory_bytes=10.0),
        HostKind(kind="b", num_devices=2, memory_bytes=5.0),
        HostKind(kind="b", num_devices=2, memory_bytes=5.0),
        HostKind(kind="c", num_devices=3, memory_bytes=7.0),
    ]
    found = {(m.shape, m.host_kinds): m for m in mixed_submeshes(hosts)}
    assert found[(1, 1), ("b",)].starts == (2, 3, 4, 5)
    assert found[(1, 2), ("a",)].starts == (0,)
    # Powers of two are aligned in their host; the whole host is there although it is none.
    assert found[(1, 2), ("c",)].starts == (6,)
    assert found[(1, 3), ("c",)].starts == (6,)
    # Hosts in a row of equal size, the smallest memory counts.
    assert found[(2, 2), ("a", "b")].starts == (0,)
    assert found[(2, 2), ("a", "b")].memory_bytes == 5.0
    assert found[(2, 2), ("b", "b")].starts == (2,)
    assert ((2, 3), ("b", "c")) not in found
    assert len(found) == 3 * 2 + 1 + 2
    every = {(m.shape, m.host_kinds): m for m in mixed_submeshes(hosts, all_shapes=True)}
    assert every[(1, 2), ("c",)].starts == (6, 7)
    assert every[(3, 2), ("a", "b", "b")].starts == (0,)
    assert str(every[(3, 2), ("a", "b", "b")]) == "(3,2) on a + b"


def test_memory_tells_hosts_of_one_name_apart():
    hosts = [HostKind(kind="a", num_devices=1, memory_bytes=m) for m in (1.0, 2.0)]
    single = [m for m in mixed_submeshes(hosts) if m.num_devices == 1]
    assert [(m.memory_bytes, m.starts) for m in single] == [(1.0, (0,)), (2.0, (1,))]
