"""Clusters by name and from files, and the logical meshes that they can be seen as."""

from __future__ import annotations

import math
import re

import pytest

from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.collectives import collective_time_s
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError

GBIT = 1e9 / 8


def test_virtual_cluster_takes_hosts_from_the_catalog():
    cluster = ClusterSpec.virtual("8x p3.16xlarge")
    assert (cluster.num_hosts, cluster.devices_per_host, cluster.num_devices) == (8, 8, 64)
    assert cluster.device.name == "V100-SXM2-16GB"
    assert ClusterSpec.virtual(" 8 x P3.16xlarge ") == cluster
    assert ClusterSpec.virtual("p4d.24xlarge").num_hosts == 1


@pytest.mark.parametrize(
    "name",
    [
        "p3.2xlarge",
        "p3.8xlarge",
        "p3.16xlarge",
        "p4d.24xlarge",
        "dgx-a100",
        "dgx-h100",
        "h200",
        "tpu-v4",
        "tpu-v5e",
        "tpu-v5p",
    ],
)
def test_every_host_of_the_catalog_can_be_planned_for(name):
    cluster = ClusterSpec.virtual(f"2x {name}")
    host = HOSTS[name]
    assert cluster.mesh((2, host.num_devices)).num_devices == 2 * host.num_devices
    assert "assumed" in host.device.source
    assert host.device.rate("bfloat16") >= host.device.rate("float32") > 0


def test_peaks_are_those_of_the_datasheets():
    v100 = HOSTS["p3.16xlarge"].device
    assert v100.rate("float16") / 125e12 == pytest.approx(0.5)
    assert v100.rate("float32") / 15.7e12 == pytest.approx(0.5)
    h100 = HOSTS["dgx-h100"].device
    assert h100.rate("bfloat16") / 989e12 == pytest.approx(0.68)
    assert h100.rate("float64") / 67e12 == pytest.approx(0.5)
    assert "bfloat16 68% (fitted)" in h100.source
    assert "others 50%" in h100.source
    assert v100.memory_bytes_per_s / 900e9 == pytest.approx(0.8)
    assert HOSTS["p3.16xlarge"].nic.bytes_per_s / (25 * GBIT) == pytest.approx(0.8)
    assert HOSTS["p3.8xlarge"].nic.bytes_per_s / (10 * GBIT) == pytest.approx(0.8)


@pytest.mark.parametrize("text", ["", "8x", "x p3.16xlarge", "0x p3.16xlarge", "8 p3", "-1x h200"])
def test_text_that_names_no_cluster_is_refused(text):
    with pytest.raises(ClusterError, match="write the number of hosts and their kind"):
        ClusterSpec.virtual(text)


def test_unknown_host_is_named_with_the_known_ones():
    with pytest.raises(ClusterError, match=r"no host 'p9.huge' in the catalog; known: p3.2xlarge"):
        ClusterSpec.virtual("2x p9.huge")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8x h100", "8 h100 are '1x dgx-h100'; known:"),
        ("64x H100", "64 H100 are '8x dgx-h100'; known:"),
        ("16x a100", "16 a100 are '2x p4d.24xlarge' or '2x dgx-a100'; known:"),
        ("8x v100", "8 v100 are '1x p3.16xlarge' or '2x p3.8xlarge' or '8x p3.2xlarge'; known:"),
        ("6x h100", "take '1x dgx-h100' (with 8); known:"),
    ],
)
def test_who_asks_for_devices_is_told_of_hosts_that_have_them(text: str, told: str):
    with pytest.raises(ClusterError, match=re.escape(told)):
        ClusterSpec.virtual(text)


@pytest.mark.parametrize("text", ["8 cpu", "8x CPU", " 8 virtual CPU devices "])
def test_virtual_devices_have_a_name(text: str):
    assert ClusterSpec.virtual(text) == cpu_cluster(8)
    assert ClusterSpec.virtual(cpu_cluster(8).name) == cpu_cluster(8)


def test_no_virtual_devices_are_refused():
    with pytest.raises(ClusterError, match="at least one virtual CPU device, got 0"):
        ClusterSpec.virtual("0 cpu")


def test_axis_inside_a_host_uses_the_link_and_across_hosts_the_shared_nic():
    cluster = ClusterSpec.virtual("2x p3.16xlarge")
    nic, link = cluster.nic.bytes_per_s, cluster.link.bytes_per_s
    across, inside = cluster.mesh((2, 8)).axes
    assert inside.link_bytes_per_s == link
    assert inside.latency_s == cluster.link.latency_s
    # Eight rings leave each host.
    assert across.link_bytes_per_s == nic / 8
    assert across.latency_s == cluster.nic.latency_s


@pytest.mark.parametrize(
    ("shape", "shares"), [((16,), (1,)), ((4, 4), (4, 0)), ((8, 2), (2, 0)), ((2, 2, 4), (8, 0, 0))]
)
def test_nic_is_shared_by_the_rings_that_leave_a_host(shape, shares):
    cluster = ClusterSpec.virtual("2x p3.16xlarge")
    for axis, share in zip(cluster.mesh(shape).axes, shares, strict=True):
        wanted = cluster.nic.bytes_per_s / share if share else cluster.link.bytes_per_s
        assert axis.link_bytes_per_s == wanted


def test_one_ring_over_all_hosts_equals_the_hierarchy_up_to_the_fast_part():
    cluster = ClusterSpec.virtual("2x p3.16xlarge")
    num_bytes = 10**9
    flat = collective_time_s("all-reduce", (0,), num_bytes, cluster.mesh((16,)))
    by_axis = collective_time_s("all-reduce", (0, 1), num_bytes, cluster.mesh((2, 8)))
    nic_s = 2 * num_bytes / 2 / cluster.nic.bytes_per_s
    assert nic_s <= by_axis < 1.05 * nic_s
    assert flat < 2 * by_axis


def test_a_fast_nic_is_never_faster_than_the_link():
    assert ClusterSpec.virtual("2x tpu-v4").mesh((2, 4)).axes[0].link_bytes_per_s == pytest.approx(
        HOSTS["tpu-v4"].link.bytes_per_s
    )


def test_names_of_axes():
    cluster = cpu_cluster(8)
    assert cluster.mesh((2, 2, 2)).names == ("x", "y", "z")
    assert cluster.mesh((2, 4), ("data", "model")).names == ("data", "model")
    for names in (("a",), ("a", "a")):
        with pytest.raises(ClusterError, match="needs 2 different axis names"):
            cluster.mesh((2, 4), names)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((), "one or more positive sizes"),
        ((0, 8), "one or more positive sizes"),
        ((5, 8), r"needs 40 devices; cluster '4x p3.16xlarge' has 32 \(4 hosts of 8\)"),
        ((12,), "must be whole hosts of 8"),
    ],
)
def test_shape_that_does_not_fit_is_refused(shape, text):
    with pytest.raises(ClusterError, match=text):
        ClusterSpec.virtual("4x p3.16xlarge").mesh(shape)


def test_part_of_a_host_is_a_mesh_and_three_hosts_are():
    cluster = ClusterSpec.virtual("4x p3.16xlarge")
    assert cluster.mesh((2, 2)).axes[0].link_bytes_per_s == cluster.link.bytes_per_s
    assert cluster.mesh((3, 8)).num_devices == 24


def test_mesh_shapes_are_all_ordered_factorisations():
    """Also where the axes are alike: a dim that both split is tiled in their order."""
    assert cpu_cluster(8).mesh_shapes() == ((8,), (2, 4), (4, 2), (2, 2, 2))
    assert cpu_cluster(1).mesh_shapes() == ((1,),)
    cluster = ClusterSpec.virtual("2x p3.16xlarge")
    shapes = cluster.mesh_shapes()
    assert {(16,), (2, 8), (4, 4), (8, 2)} <= set(shapes)
    assert all(math.prod(shape) == 16 for shape in shapes)
    assert cluster.mesh_shapes(4) == ((4,), (2, 2))
    with pytest.raises(ClusterError, match="needs 17 devices"):
        cluster.mesh_shapes(17)


def test_cpu_devices_share_the_rates_of_the_host():
    one, eight = cpu_cluster(1), cpu_cluster(8)
    assert one.device.rate("float32") == pytest.approx(8 * eight.device.rate("float32"))
    assert one.device.memory_bytes_per_s == pytest.approx(8 * eight.device.memory_bytes_per_s)
    assert one.device.memory_bytes == 8 * eight.device.memory_bytes
    assert cpu_cluster(4, host_memory_bytes=4000).device.memory_bytes == 1000
    with pytest.raises(ClusterError, match="at least one virtual CPU device, got 0"):
        cpu_cluster(0)


LAB = """
name = "lab"
num_hosts = 2
[host]
num_devices = 4
link = { latency_s = 0.0, bytes_per_s = 1e11 }
nic = { latency_s = 3e-5, bytes_per_s = 1.25e9 }
[host.device]
name = "card"
memory_bytes = 16000000000
memory_bytes_per_s = 7e11
flop_per_s = { float32 = 8e12, bfloat16 = 6e13 }
source = "measured 2026-11-20"
"""


def written(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_cluster_from_file(tmp_path):
    cluster = ClusterSpec.from_file(written(tmp_path, LAB))
    assert (cluster.name, cluster.num_devices, cluster.host.name) == ("lab", 8, "card")
    assert cluster.device.rate("bfloat16") == 6e13
    assert cluster.mesh((2, 4)).axes[0].link_bytes_per_s == 1.25e9 / 4
    named = ClusterSpec.from_file(written(tmp_path, 'num_hosts = 8\nhost = "p3.16xlarge"\n'))
    assert named == ClusterSpec.virtual("8x p3.16xlarge")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("num_hosts = 2", "", "key 'num_hosts' is missing"),
        ("num_hosts = 2", "num_hosts = 0", "'num_hosts' must be a whole number above zero, got 0"),
        ("num_hosts = 2", "num_hosts = 2.5", "whole number above zero, got 2.5"),
        ("num_hosts = 2", "num_hosts = 2\nracks = 1", "unknown key 'racks'; known: name, num_host"),
        ("1.25e9", '"fast"', r"host.nic: 'bytes_per_s' must be a number, got 'fast'"),
        ("1.25e9", "-1.0", r"host.nic: 'bytes_per_s' must be finite and above zero, got -1.0"),
        ("1.25e9", "nan", "finite and above zero, got nan"),
        ("latency_s = 3e-5, ", "", r"host.nic: key 'latency_s' is missing"),
        ("{ float32 = 8e12, bfloat16 = 6e13 }", "8e12", "must be a table of dtype names"),
        ("8e12", "true", "flop_per_s: 'float32' must be a number, got True"),
        ('name = "card"', "name = 3", r"host.device: 'name' must be a text, got 3"),
        ("num_hosts = 2", "num_hosts =", "is not TOML"),
    ],
)
def test_wrong_file_is_refused_naming_the_key(tmp_path, old, new, text):
    with pytest.raises(ClusterError, match=text):
        ClusterSpec.from_file(written(tmp_path, LAB.replace(old, new)))


def test_file_with_an_unknown_host_or_no_file_is_refused(tmp_path):
    path = written(tmp_path, 'num_hosts = 1\nhost = "cray"\n')
    with pytest.raises(ClusterError, match="no host 'cray' in the catalog"):
        ClusterSpec.from_file(path)
    path = written(tmp_path, "num_hosts = 1\nhost = 7\n")
    with pytest.raises(ClusterError, match="host must be a table, got 7"):
        ClusterSpec.from_file(path)
    with pytest.raises(ClusterError, match=r"cannot read cluster file .*No such file"):
        ClusterSpec.from_file(tmp_path / "none.toml")
