"""The network between hosts: rounds of pairs, the cluster made of them, and a job that measures."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwise as mw
from meshwise.calibrate import network
from meshwise.calibrate.hosts import cluster_of_hosts, hosts_of, memory_of_one
from meshwise.calibrate.network import PairPoint, rounds
from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.description.toml_text import cluster_toml
from meshwise.cluster.host import HostGroup, Link
from meshwise.errors import ClusterError

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


def test_one_host_has_no_pairs() -> None:
    # Its devices may be those of several processes.
    assert list(rounds(1)) == []


def devices(*processes: int, platform: str = "gpu") -> Any:
    return [SimpleNamespace(platform=platform, process_index=n) for n in processes]


def test_accelerators_of_a_machine_are_one_host() -> None:
    found = hosts_of(devices(0, 1, 2, 2), ["a", "a", "b"])
    assert [[d.process_index for d in host] for host in found] == [[0, 1], [2, 2]]
    found = hosts_of(devices(0, 0, 1, platform="cpu"), ["a", "a"])
    assert [len(host) for host in found] == [2, 1]


def test_processes_of_a_machine_with_others_between_them_are_refused() -> None:
    with pytest.raises(ClusterError, match="machine 'a' have numbers with those of other machines"):
        hosts_of(devices(0, 1, 2), ["a", "b", "a"])


def test_memory_is_asked_of_devices_of_this_process() -> None:
    (own,) = devices(1)
    own.memory_stats = lambda: {"bytes_limit": 5}
    assert memory_of_one([own], 8) == 5
    virtual = devices(0, 0, platform="cpu")
    assert memory_of_one(virtual, 4) == 2 * (memory_of_one(virtual, 8) or 0)


class SlowStart(network._Network):
    """A network of 1 GB/s, whose first transfer takes 5 s longer."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def _seconds(self, ways: Sequence[network.Way], num_bytes: int) -> list[float]:
        self.sizes.append(num_bytes)
        return [num_bytes / 1e9 + 5 * (len(self.sizes) == 1)] * len(ways)


def test_the_time_to_connect_does_not_make_arrays_small() -> None:
    slow = SlowStart()
    (a, b) = devices(0, 1)
    assert slow.rates([[(a, b)]]) == pytest.approx([1e9])
    assert slow.sizes[-1] > 2e8


def test_equal_hosts_are_one_kind_with_the_network_of_the_median_pair() -> None:
    noisy = [
        replace(
            HOST,
            device=replace(HOST.device, flop_per_s=(("float32", rate),), memory_bytes=memory),
        )
        for rate, memory in ((1.0e12, 5), (1.2e12, 6), (1.1e12, 7))
    ]
    pairs = [pair(0, 1, 8e9, 3.8), pair(0, 2, 1e9, 4.1), pair(1, 2, 12e9, 4.0)]
    cluster = cluster_of_hosts(noisy, pairs)
    (group,) = cluster.groups
    assert group.count == 3
    assert group.host.device.rate("float32") == 1.1e12
    # A plan has to fit on each of them.
    assert group.host.device.memory_bytes == 5
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


def test_names_may_have_any_characters_but_controls(tmp_path: Path) -> None:
    name = 'a \u00ad "\U0001f600" \\ \n'
    path = tmp_path / "cluster.toml"
    path.write_text(cluster_toml(name, (HostGroup(count=1, host=HOST),)), encoding="utf-8")
    assert mw.Cluster.from_file(path).name == name


def calibrate(path: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwise", "launch", *options, "-m", "meshwise"]
    return subprocess.run(
        [*command, "calibrate", "--hosts", "--quick", "--out", str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "variables", "text"),
    [
        (".", {"NPROC": "1"}, "XLA:CPU has 1 thread for"),
        ("missing", {}, "no folder"),
    ],
)
def test_a_job_refuses_before_it_measures(
    folder: str, variables: dict[str, str], text: str, tmp_path: Path
) -> None:
    done = calibrate(tmp_path / folder / "cluster.toml", "--hosts", "2", **variables)
    assert done.returncode == 1
    assert text in done.stdout + done.stderr
    assert "/s" not in done.stdout


@pytest.mark.slow
def test_a_job_measures_its_network(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    done = calibrate(path, "--hosts", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hosts 1 and 2:" in done.stdout
    (group,) = mw.Cluster.from_file(path).groups
    assert (group.count, group.host.num_devices, group.host.num_nics) == (3, 1, 1)
    assert "median of 3 pairs" in group.host.source
