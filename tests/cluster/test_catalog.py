"""Every entry of the catalog: what is reached is below the peak, and all has a source."""

from __future__ import annotations

import pytest

from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.host import HostSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError

GIB = 2**30


def test_the_machines_of_the_issue_are_there():
    names = (
        "p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "p4d.24xlarge", "dgx-a100", "dgx-h100", "h200",
        "gb200-nvl72", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e",
    )  # fmt: skip
    assert set(names) == set(HOSTS)
    assert all(HOSTS[name].name == name for name in names)


@pytest.mark.parametrize("host", HOSTS.values(), ids=list(HOSTS))
def test_reached_is_between_a_third_of_the_peak_and_the_peak(host: HostSpec):
    peak = host.peak
    assert peak is not None
    peaks = dict(peak.flop_per_s)
    assert set(peaks) == {dtype for dtype, _ in host.device.flop_per_s} >= {"float32", "bfloat16"}
    pairs = [(rate, peaks[dtype]) for dtype, rate in host.device.flop_per_s]
    pairs.append((host.device.memory_bytes, peak.memory_bytes))
    pairs.append((host.device.memory_bytes_per_s, peak.memory_bytes_per_s))
    pairs.append((host.link.bytes_per_s, peak.link_bytes_per_s))
    pairs.append((host.nic.bytes_per_s, peak.nic_bytes_per_s))
    for reached, most in pairs:
        assert most / 3 <= reached <= most


@pytest.mark.parametrize("host", HOSTS.values(), ids=list(HOSTS))
def test_numbers_are_plausible_and_have_a_source(host: HostSpec):
    device = host.device
    assert 12 * GIB < device.memory_bytes < 256 * GIB
    # No device reads its memory in less than 2 ms or more than 100 ms.
    assert 2e-3 < device.memory_bytes / device.memory_bytes_per_s < 0.1
    # A device computes 4 to 1000 operations for each byte that it reads.
    assert 4 < device.rate("bfloat16") / device.memory_bytes_per_s < 1000
    assert device.memory_bytes_per_s > host.link.bytes_per_s >= host.nic.bytes_per_s
    assert 1e-7 < host.link.latency_s <= host.nic.latency_s < 1e-3
    assert host.num_devices % host.num_nics == 0
    for source in (device.source, host.source):
        assert "assumed" in source
        assert any(maker in source for maker in ("NVIDIA", "Amazon", "Google"))


@pytest.mark.parametrize(
    ("text", "hosts", "per_host", "device"),
    [
        ("v5e-256", 64, 4, "TPU v5e"),
        ("v5litepod-8", 1, 8, "TPU v5e"),
        ("v6e-1", 1, 1, "TPU v6e"),
        ("V6E-64", 16, 4, "TPU v6e"),
        # Numbers of these count TensorCores, of which a chip has two.
        ("v4-8", 1, 4, "TPU v4"),
        ("v4-128", 16, 4, "TPU v4"),
        ("tpu-v5p-12288", 1536, 4, "TPU v5p"),
    ],
)
def test_slices_have_googles_names(text: str, hosts: int, per_host: int, device: str):
    cluster = ClusterSpec.virtual(text)
    assert (cluster.num_hosts, cluster.devices_per_host) == (hosts, per_host)
    assert cluster.device.name == device
    # On the torus leaving a host costs what staying costs.
    if hosts > 1:
        across, inside = cluster.mesh((hosts, per_host)).axes
        assert across.link_bytes_per_s == inside.link_bytes_per_s


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("v5e-2", "counts chips: 1, 4, 8, or a multiple of 4 up to 256"),
        ("v5e-0", "no TPU slice 'v5e-0'"),
        ("v5e-18", "no TPU slice 'v5e-18'"),
        ("v6e-512", "up to 256"),
        ("v4-4", "counts TensorCores, two a chip: 8, or a multiple of 8 up to 8192"),
        ("v5p-9", "no TPU slice 'v5p-9'"),
        ("2x v5e-256", "is a cluster by itself"),
        ("v5e-256 + p3.16xlarge", "is a cluster by itself"),
    ],
)
def test_slices_that_are_not_sold_are_refused(text: str, told: str):
    with pytest.raises(ClusterError, match=told):
        ClusterSpec.virtual(text)
