"""Ring times of docs/facts.md section 1, in closed form."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.cluster.collectives import COLLECTIVES, collective_terms, collective_time_s
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.views import axis_names, logical_mesh

DEVICE = DeviceSpec(
    name="d", memory_bytes=1, memory_bytes_per_s=1.0, flop_per_s=(("float32", 1.0),), source="test"
)
FAST = MeshAxis(name="fast", size=4, latency_s=1e-6, link_bytes_per_s=1e9)
SLOW = MeshAxis(name="slow", size=3, latency_s=1e-5, link_bytes_per_s=1e7)
MESH = LogicalMesh(axes=(SLOW, FAST), device=DEVICE)
B = 12_000_000


@pytest.mark.parametrize(
    ("kind", "expected_s"),
    [
        ("all-gather", 3 * 1e-6 + 3 / 4 * B / 1e9),
        ("reduce-scatter", 3 * 1e-6 + 3 / 4 * B / 1e9),
        ("all-reduce", 6 * 1e-6 + 6 / 4 * B / 1e9),
        ("all-to-all", 3 * 1e-6 + 3 / 16 * B / 1e9),
        ("permute", 1e-6 + B / (4 * 1e9)),
    ],
)
def test_one_axis_takes_the_time_of_a_ring(kind, expected_s):
    assert collective_time_s(kind, (1,), B, MESH) == pytest.approx(expected_s, rel=1e-12)


def test_all_reduce_over_two_axes_goes_along_the_fast_axis_first():
    along_fast = 6 * 1e-6 + 6 / 4 * B / 1e9
    along_slow = 4 * 1e-5 + 4 / 3 * (B / 4) / 1e7
    assert collective_time_s("all-reduce", (0, 1), B, MESH) == pytest.approx(
        along_fast + along_slow, rel=1e-12
    )


def test_small_all_reduce_over_equal_axes_needs_fewer_hops_axis_by_axis():
    axes = tuple(MeshAxis(name=n, size=4, latency_s=1e-5, link_bytes_per_s=1e12) for n in "ab")
    mesh = LogicalMesh(axes=axes, device=DEVICE)
    assert collective_time_s("all-reduce", (0, 1), 0, mesh) == pytest.approx(2 * 6 * 1e-5)


def test_flat_ring_is_taken_where_it_is_less():
    # Axis by axis, each phase of an all-to-all sends its part again; one ring sends it once.
    axes = tuple(MeshAxis(name=n, size=2, latency_s=0.0, link_bytes_per_s=1e9) for n in "ab")
    mesh = LogicalMesh(axes=axes, device=DEVICE)
    assert collective_time_s("all-to-all", (0, 1), B, mesh) == pytest.approx(3 / 16 * B / 1e9)
    flat, by_axis = collective_terms("all-to-all", axes)
    assert by_axis.seconds_per_byte == pytest.approx(2 * (1 / 4) * (1 / 2) / 1e9)
    assert flat.seconds_per_byte < by_axis.seconds_per_byte


def test_permute_over_two_axes_runs_at_the_slowest_link():
    expected = 1e-5 + B / (12 * 1e7)
    assert collective_time_s("permute", (0, 1), B, MESH) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_group_of_one_device_costs_nothing(kind):
    axis = MeshAxis(name="one", size=1, latency_s=1.0, link_bytes_per_s=1.0)
    mesh = LogicalMesh(axes=(axis,), device=DEVICE)
    assert collective_time_s(kind, (0,), B, mesh) == 0.0


@given(
    kind=st.sampled_from(COLLECTIVES),
    axes=st.sampled_from([(0,), (1,), (0, 1)]),
    sizes=st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
)
def test_more_bytes_never_take_less_time(kind, axes, sizes):
    small, large = sorted(sizes)
    assert collective_time_s(kind, axes, small, MESH) <= collective_time_s(kind, axes, large, MESH)


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="not a collective: 'gossip'; known are all-reduce"):
        collective_time_s("gossip", (0,), 1, MESH)


@pytest.mark.parametrize(
    ("num_hosts", "shape", "axis", "together"),
    [(8, (64,), 0, 8), (8, (8, 8), 0, 1), (8, (16, 4), 0, 2), (2, (4, 4), 0, 2), (3, (6, 4), 0, 2)],
)
def test_all_to_all_among_hosts_sends_what_leaves_a_host_through_its_nics(
    num_hosts, shape, axis, together
):
    host = ClusterSpec.virtual("1x dgx-h100").host
    mesh = logical_mesh(host, 8, shape, axis_names(shape, None))
    size, count = shape[axis], num_hosts * 8
    # Each device holds B / n; what its host's members of the group do not hold leaves the host.
    each = B / size * (size - together) / size
    expected_s = each * host.num_devices / host.nics_bytes_per_s
    term = mesh.axes[axis]
    found_s = collective_time_s("all-to-all", (axis,), B, mesh) - (size - 1) * term.latency_s
    assert count == mesh.num_devices
    assert found_s == pytest.approx(expected_s, rel=1e-9)


def test_all_to_all_in_a_host_is_as_fast_as_its_links():
    host = ClusterSpec.virtual("1x dgx-h100").host
    (axis,) = logical_mesh(host, 8, (8,), ("x",)).axes
    assert axis.exchange_bytes_per_s == 0.0
    assert axis.bytes_per_s(is_exchange=True) == host.link.bytes_per_s


GPU = dataclasses.replace(DEVICE, name="H100-SXM5-80GB")
# Without bandwidth to wait for, all time is latency: 2 * 3 hops.
FAR = MeshAxis(name="far", size=4, latency_s=1e-5, link_bytes_per_s=1e30)
LATENCY_S = 6e-5
BUCKET = 30 * 2**20


def far_s(
    num_bytes: int, sharers: int, device: DeviceSpec = GPU, kind: str = "all-reduce"
) -> float:
    mesh = LogicalMesh(axes=(FAR,), device=device)
    return collective_time_s(kind, (0,), num_bytes, mesh, sharers=sharers)


def test_small_collectives_in_a_bucket_pay_one_latency_together():
    assert 100 * far_s(4, 100) == pytest.approx(LATENCY_S, rel=1e-4)
    assert far_s(4, 0) == pytest.approx(LATENCY_S)


def test_each_full_bucket_pays_one_latency_more():
    assert 60 * far_s(BUCKET // 20, 60) == pytest.approx((1 + 3) * LATENCY_S)


def test_a_collective_larger_than_a_bucket_pays_its_own_latency():
    assert far_s(2 * BUCKET, 60) == pytest.approx(LATENCY_S)
    assert far_s(4, 1) == pytest.approx(LATENCY_S)


def test_programs_of_cpus_and_unknown_devices_merge_nothing():
    for name in ("virtual CPU", "d"):
        device = dataclasses.replace(DEVICE, name=name)
        assert far_s(4, 100, device) == far_s(4, 0, device)


@pytest.mark.parametrize("kind", ["all-to-all", "permute"])
def test_compilers_do_not_merge_these(kind):
    assert far_s(4, 100, kind=kind) == far_s(4, 0, kind=kind)


@given(
    st.sampled_from(COLLECTIVES),
    st.integers(0, 2**32),
    st.integers(1, 500),
    st.sampled_from([(0,), (1,), (0, 1)]),
)
def test_a_bucket_never_costs_more_than_to_send_alone(kind, num_bytes, sharers, axes):
    mesh = LogicalMesh(axes=(SLOW, FAST), device=GPU)
    shared = collective_time_s(kind, axes, num_bytes, mesh, sharers=sharers)
    assert shared <= collective_time_s(kind, axes, num_bytes, mesh)
    assert shared >= collective_time_s(kind, axes, num_bytes, mesh, sharers=sharers + 1)
