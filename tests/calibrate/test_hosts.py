"""The network between hosts: rounds of pairs, the cluster made of them, and a job that measures."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwise as mw
from meshwise.calibrate.hosts import cluster_of_hosts
from meshwise.calibrate.network import PairPoint, rounds
from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.description.toml_text import cluster_toml
from meshwise.cluster.host import HostGroup, Link

HOST = mw.Cluster.virtual("p3.8xlarge").host_at(0)


def pair(first: int, second: int, rate: float, ways: float = 1.0) -> PairPoint:
    return PairPoint(
        first=first,
        second=second,
        latency_s=1e-4,
        one_device_bytes_per_s=rate / ways,
        one_way_bytes_per_s=rate,
        both_ways_bytes_per_s=rate,
    )


@given(st.integers(2, 17))
def test_each_host_is_with_each_other_once_and_with_one_at_a_time(num_hosts: int) -> None:
    found = list(rounds(num_hosts))
    for pairs in found:
        assert max(Counter(itertools.chain(*pairs)).values()) == 1
    assert sorted(itertools.chain(*found)) == list(itertools.combinations(range(num_hosts), 2))
    assert len(found) == num_hosts - (num_hosts % 2 == 0)


def test_equal_hosts_are_one_kind_with_the_network_of_the_median_pair() -> None:
    noisy = [
        replace(HOST, device=replace(HOST.device, flop_per_s=(("float32", rate),)))
        for rate in (1.0e12, 1.2e12, 1.1e12)
    ]
    pairs = [pair(0, 1, 8e9, 3.8), pair(0, 2, 1e9, 4.1), pair(1, 2, 12e9, 4.0)]
    cluster = cluster_of_hosts(noisy, pairs)
    (group,) = cluster.groups
    assert group.count == 3
    assert group.host.device.rate("float32") == 1.1e12
    # All four devices together are four times as fast as one of them: they have a card each.
    assert (group.host.num_nics, group.host.nic) == (4, Link(latency_s=1e-4, bytes_per_s=2e9))


def test_hosts_of_different_devices_are_different_kinds() -> None:
    other = mw.Cluster.virtual("p4d.24xlarge").host_at(0)
    cluster = cluster_of_hosts([HOST, other, other], [pair(0, 1, 1e9)])
    assert [(g.count, g.host.device.name) for g in cluster.groups] == [
        (1, HOST.device.name),
        (2, other.device.name),
    ]


@pytest.mark.parametrize("name", HOSTS)
def test_a_description_reads_back_equal(name: str, tmp_path: Path) -> None:
    host = mw.Cluster.virtual(name).host_at(0)
    slow = replace(host, name='a "slow" one', nic=Link(latency_s=1e-3, bytes_per_s=1e7))
    groups = (HostGroup(count=3, host=host), HostGroup(count=1, host=slow))
    path = tmp_path / "cluster.toml"
    path.write_text(cluster_toml("mine", groups, ["measured " * 30]), encoding="utf-8")
    found = mw.Cluster.from_file(path)
    assert (found.name, found.groups) == ("mine", groups)


@pytest.mark.slow
def test_a_job_measures_its_network(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    command = [sys.executable, "-m", "meshwise", "launch", "--hosts", "3", "-m", "meshwise"]
    done = subprocess.run(
        [*command, "calibrate", "--hosts", "--quick", "--out", str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hosts 1 and 2:" in done.stdout
    (group,) = mw.Cluster.from_file(path).groups
    assert (group.count, group.host.num_devices, group.host.num_nics) == (3, 1, 1)
    assert "median of 3 pairs" in group.host.source
