"""Hosts that differ, submeshes, NICs and who shares them."""

from __future__ import annotations

import dataclasses

import pytest

from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.host import HostGroup, HostSpec, Link, slowest
from meshwise.cluster.mesh import DeviceSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError

MIXED = ClusterSpec.virtual("2x p3.16xlarge + 3x dgx-a100")
OLD, NEW = HOSTS["p3.16xlarge"], HOSTS["dgx-a100"]


def with_nics(num_nics: int, nic_bytes_per_s: float) -> ClusterSpec:
    """Two hosts of 8 devices whose links are not in the way."""
    host = dataclasses.replace(
        OLD,
        num_nics=num_nics,
        nic=Link(latency_s=1e-5, bytes_per_s=nic_bytes_per_s),
        link=Link(latency_s=1e-6, bytes_per_s=1e15),
    )
    return ClusterSpec(name="nics", groups=(HostGroup(count=2, host=host),))


def test_groups_of_a_text_keep_their_order_and_neighbours_join():
    assert [(g.count, g.host.name) for g in MIXED.groups] == [(2, "p3.16xlarge"), (3, "dgx-a100")]
    assert (MIXED.name, MIXED.num_hosts, MIXED.num_devices) == (
        "2x p3.16xlarge + 3x dgx-a100", 5, 40,
    )  # fmt: skip
    assert MIXED.is_mixed
    assert ClusterSpec.virtual("2x h200+H200") == ClusterSpec.virtual("3x h200")
    between = ClusterSpec.virtual("h200 + dgx-h100 + h200")
    assert between.is_mixed
    assert [between.host_at(i).name for i in range(3)] == ["h200", "dgx-h100", "h200"]


@pytest.mark.parametrize("name", ["host", "device", "link", "nic", "devices_per_host"])
def test_what_only_equal_hosts_have_says_what_to_use(name: str):
    with pytest.raises(ClusterError, match=r"differ.*cluster.submesh\(...\).*cluster.slowest\(\)"):
        getattr(MIXED, name)


def test_a_mixed_cluster_is_no_single_mesh():
    for make in (lambda: MIXED.mesh((5, 8)), MIXED.mesh_shapes):
        with pytest.raises(ClusterError, match=r"differ.*cluster.slowest\(\)"):
            make()


def test_a_spanning_submesh_is_as_slow_as_the_slowest_in_everything():
    kind = MIXED.submesh(1, 2).kind
    assert kind.shape == (2, 8)
    device = kind.device
    assert device.memory_bytes == OLD.device.memory_bytes < NEW.device.memory_bytes
    assert device.memory_bytes_per_s == OLD.device.memory_bytes_per_s
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        assert device.rate(dtype) == min(OLD.device.rate(dtype), NEW.device.rate(dtype))
    across, inside = kind.mesh((2, 8)).axes
    assert inside.link_bytes_per_s == OLD.link.bytes_per_s
    assert across.link_bytes_per_s == OLD.nic.bytes_per_s / 8
    assert across.latency_s == OLD.nic.latency_s


def test_the_slowest_of_two_crossed_hosts_is_slower_than_both():
    fast_nic = dataclasses.replace(OLD, nic=Link(latency_s=1e-6, bytes_per_s=1e11), num_nics=1)
    many_nics = dataclasses.replace(NEW, nic=Link(latency_s=9e-6, bytes_per_s=2e9), num_nics=8)
    both = slowest([fast_nic, many_nics, fast_nic])
    for part in (fast_nic, many_nics):
        for count in (1, 2, 4, 8):
            assert both.fair_bytes_per_s(count) <= part.fair_bytes_per_s(count)
            assert both.alone_bytes_per_s(count) <= part.alone_bytes_per_s(count)
    assert both.nic.latency_s == 9e-6
    assert slowest([OLD, OLD]) == OLD
    with pytest.raises(ClusterError, match="no hosts"):
        slowest([])


def test_a_device_that_is_slowest_in_everything_stands_for_all():
    # So plans of layers for it are plans for both.
    assert slowest([OLD, NEW]).device == OLD.device
    crossed = dataclasses.replace(NEW.device, memory_bytes=OLD.device.memory_bytes - 1)
    both = slowest([OLD, dataclasses.replace(NEW, device=crossed)]).device
    assert both.name == f"slowest of {OLD.device.name}, {crossed.name}"
    assert both.memory_bytes == crossed.memory_bytes
    assert both.rate("float16") == OLD.device.rate("float16")


def test_the_slowest_cluster_has_equal_hosts():
    whole = MIXED.slowest()
    assert not whole.is_mixed
    assert whole.num_devices == 40
    assert whole.device == MIXED.submesh(0, 5).kind.device
    equal = ClusterSpec.virtual("2x h200")
    assert equal.slowest() is equal
    # Hosts with more devices leave some idle.
    assert ClusterSpec.virtual("p3.8xlarge + p3.16xlarge").slowest().num_devices == 8


def test_a_submesh_of_equal_hosts_is_priced_as_the_cluster():
    cluster = ClusterSpec.virtual("4x dgx-a100")
    for shape in ((2, 8), (16,), (4, 4), (2, 2, 4)):
        assert cluster.submesh(1, 2).kind.mesh(shape) == cluster.mesh(shape)
    assert cluster.submesh(3, 1, 4, 4).kind.mesh((2, 2)) == cluster.mesh((2, 2))
    assert set(cluster.submesh(0, 4).kind.mesh_shapes()) <= set(cluster.mesh_shapes())
    views = cluster.submesh(0, 2).kind.logical_meshes(max_axes=2)
    assert {view.sizes for view in views} <= set(cluster.mesh_shapes(16))
    assert all(view.num_devices == 16 for view in views)


def test_each_device_with_its_own_nic_reaches_it():
    own, shared = with_nics(8, 1e9), with_nics(1, 8e9)
    # All of both hosts: as fast, whoever owns the NICs.
    for shape in ((2, 8), (16,), (4, 4)):
        assert own.mesh(shape) == shared.mesh(shape)
    assert own.nic.bytes_per_s == shared.nic.bytes_per_s == 8e9
    # Half of both hosts: half of the NICs; what is left belongs to others.
    for cluster in (own, shared):
        axis = cluster.submesh(0, 2, 4, 4).kind.mesh((2, 4)).axes[0]
        assert axis.link_bytes_per_s == pytest.approx(1e9)
    host = own.host
    assert [host.alone_bytes_per_s(n) for n in (1, 2, 8)] == [1e9, 2e9, 8e9]
    assert [shared.host.alone_bytes_per_s(n) for n in (1, 2, 8)] == [8e9, 8e9, 8e9]
    # Two devices a NIC.
    assert [with_nics(4, 1e9).host.alone_bytes_per_s(n) for n in (1, 2, 3)] == [1e9, 1e9, 2e9]
    # Four NICs a device.
    assert with_nics(32, 1e9).host.alone_bytes_per_s(1) == 4e9


def test_the_papers_submeshes():
    cluster = ClusterSpec.virtual("2x p3.8xlarge")
    shapes = [kind.shape for kind in cluster.submesh_kinds()]
    assert shapes == [(1, 1), (1, 2), (1, 4), (2, 4)]
    places = cluster.submeshes()
    assert len(places) == 2 * (4 + 2 + 1) + 1
    assert list(dict.fromkeys(place.kind for place in places)) == list(cluster.submesh_kinds())
    wide = [place for place in places if place.kind.num_hosts == 2]
    assert list(cluster.submeshes(num_hosts={2})) == wide
    every = cluster.submeshes(every=True)
    assert len(every) == 2 * (4 + 3 + 2 + 1) + (4 + 3 + 2 + 1)
    assert set(places) < set(every)
    kinds = {place.kind for place in every}
    assert kinds == set(cluster.submesh_kinds(every=True))
    assert len(kinds) == 8


def test_a_host_that_is_no_power_of_two_has_powers_and_the_whole():
    shapes = [kind.shape for kind in ClusterSpec.virtual("2x gb200-nvl72").submesh_kinds()]
    assert shapes == [(1, 2**p) for p in range(7)] + [(1, 72), (2, 72)]


def test_kinds_of_a_mixed_cluster_tell_its_hosts_apart():
    kinds = MIXED.submesh_kinds()
    assert len(kinds) == len(set(kinds))
    multi = [(kind.num_hosts, kind.host.name) for kind in kinds if kind.num_hosts > 1]
    both = "slowest of p3.16xlarge, dgx-a100"
    assert multi == [
        (2, "p3.16xlarge"), (2, both), (2, "dgx-a100"), (3, both), (3, "dgx-a100"), (4, both),
        (5, both),
    ]  # fmt: skip
    assert [k.host.name for k in kinds if k.shape == (1, 8)] == ["p3.16xlarge", "dgx-a100"]


def test_device_numbers_count_host_by_host():
    cluster = ClusterSpec.virtual("2x p3.8xlarge + 2x p3.16xlarge")
    assert cluster.device_numbers(cluster.submesh(0, 1, 2, 2)) == (2, 3)
    assert cluster.device_numbers(cluster.submesh(1, 2)) == (4, 5, 6, 7, 8, 9, 10, 11)
    assert cluster.device_numbers(cluster.submesh(2, 2, 4)) == (12, 13, 14, 15, 20, 21, 22, 23)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((5, 1), "submesh of 1 host from host 5 on; .* has hosts 0 to 4"),
        ((-1, 1), "has hosts 0 to 4"),
        ((0, 0), "a submesh at least one"),
        ((4, 2), "has hosts 0 to 4"),
        ((0, 1, 8), "submesh of 0 devices a host from device 8 on; its hosts have 8"),
        ((0, 1, 4, 5), "its hosts have 8 devices"),
        ((0, 1, -1, 2), "its hosts have 8 devices"),
        ((0, 1, 0, 0), "its hosts have 8 devices"),
    ],
)
def test_a_submesh_that_is_not_there_is_refused(arguments: tuple[int, ...], told: str):
    with pytest.raises(ClusterError, match=told):
        MIXED.submesh(*arguments)


def test_a_mesh_of_a_submesh_has_all_its_devices():
    with pytest.raises(ClusterError, match=r"has 4 devices; the submesh has 8 \(1 host with 8"):
        MIXED.submesh(0, 1).kind.mesh((2, 2))
    with pytest.raises(ClusterError, match=r"no host 9; cluster .* has hosts 0 to 4"):
        MIXED.host_at(9)


def test_measured_times_of_products_are_linear_between_points():
    device = dataclasses.replace(
        OLD.device, dense_times=(("float32", ((1e6, 1e-3), (3e6, 2e-3), (4e6, 2e-3))),)
    )
    at = {0.0: 0.0, 5e5: 5e-4, 1e6: 1e-3, 2e6: 1.5e-3, 3e6: 2e-3, 3.5e6: 2e-3, 8e6: 4e-3}
    for flop, seconds in at.items():
        assert device.dense_s(flop, "float32") == pytest.approx(seconds)
    # Three small ones are not one large one.
    assert device.dense_s(6e6, "float32", 3) == pytest.approx(3 * 1.5e-3)
    assert device.dense_s(1e9, "float16") == 1e9 / device.rate("float16")


def test_the_slowest_device_takes_the_longest_time_at_each_size():
    def host(points: tuple[tuple[float, float], ...]) -> HostSpec:
        device = DeviceSpec(
            name=f"d{points[0][0]}",
            memory_bytes=1,
            memory_bytes_per_s=1.0,
            flop_per_s=(("float32", 1.0),),
            source="test",
            dense_times=(("float32", points),),
        )
        return dataclasses.replace(OLD, device=device)

    both = slowest([host(((1.0, 1.0), (10.0, 5.0))), host(((2.0, 1.0), (10.0, 9.0)))])
    assert dict(both.device.dense_times)["float32"] == ((1.0, 1.0), (2.0, 13 / 9), (10.0, 9.0))


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ((), "at least one group of hosts, got none"),
        ((HostGroup(count=0, host=OLD),), "got 0 hosts 'p3.16xlarge' with 8 devices and 1 NIC"),
        ((HostGroup(count=10**6, host=OLD),), "8000000 devices; at most 131072"),
        (
            (HostGroup(count=1, host=dataclasses.replace(OLD, num_nics=0)),),
            "with 8 devices and 0 NICs",
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(groups: tuple[HostGroup, ...], told: str):
    with pytest.raises(ClusterError, match=told):
        ClusterSpec(name="c", groups=groups)


def test_equal_hosts_of_one_machine_have_one_kind():
    assert [kind.shape for kind in cpu_cluster(8).submesh_kinds()] == [
        (1, 1), (1, 2), (1, 4), (1, 8),
    ]  # fmt: skip
