"""Cluster files and profiles of others: refused with the file and the key, or read as they are."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostile.bounds import bounded
from hostile.mutations import damaged, documents, json_of, raw, toml_of
from hostile.searches import COUNTS, check_error, search
from hostile.valid import CLUSTER_FILES, CLUSTERS, HOST, PROFILE, PROFILE_FILE
from meshwise.cluster.description.profile import read_profile
from meshwise.cluster.host import MAX_DEVICES
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError


def check_cluster(path: Path) -> Callable[[bytes], None]:
    """Return the check of a file, which is written there."""

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with bounded():
            try:
                cluster = ClusterSpec.from_file(path)
            except ClusterError as error:
                return check_error(error, path)
            assert_counts(cluster, tomllib.loads(data.decode()))
            assert cluster.slowest().num_hosts == cluster.num_hosts
            # What is written is read back.
            path.write_bytes(toml_of(cluster.table()))
            assert ClusterSpec.from_file(path) == cluster

    return check


def assert_counts(cluster: ClusterSpec, said: dict[str, Any]) -> None:
    groups = said.get("hosts", [{"count": said.get("num_hosts", 1)}])
    assert cluster.num_hosts == sum(group.get("count", 1) for group in groups)
    assert cluster.num_devices <= MAX_DEVICES
    if isinstance(said.get("host"), dict):
        assert cluster.host.num_devices == said["host"]["num_devices"]
        assert cluster.host.device.memory_bytes == said["host"]["device"]["memory_bytes"]
        assert cluster.host.link.bytes_per_s == said["host"]["link"]["bytes_per_s"]


def check_profile(path: Path) -> Callable[[bytes], None]:
    """Return the check of a file, which is written there."""

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with bounded():
            try:
                profile = read_profile(path)
            except ClusterError as error:
                return check_error(error, path)
            said = json.loads(data)
            written = json.loads(profile.to_json())
            for name in set(said) - {"host"}:
                assert written[name] == said[name]
            path.write_text(profile.to_json(), encoding="utf-8")
            assert read_profile(path) == profile

    return check


@pytest.mark.parametrize("count", COUNTS)
def test_clusters_with_other_values(count: int, tmp_path: Path) -> None:
    search(documents(CLUSTERS, toml_of), check_cluster(tmp_path / "lab.toml"), count)


@pytest.mark.parametrize("count", COUNTS)
def test_clusters_with_other_bytes(count: int, tmp_path: Path) -> None:
    search(damaged(CLUSTER_FILES), check_cluster(tmp_path / "lab.toml"), count)


@pytest.mark.parametrize("count", COUNTS)
def test_profiles_with_other_values(count: int, tmp_path: Path) -> None:
    search(documents([PROFILE], json_of), check_profile(tmp_path / "p.json"), count)


@pytest.mark.parametrize("count", COUNTS)
def test_profiles_with_other_bytes(count: int, tmp_path: Path) -> None:
    search(damaged([PROFILE_FILE]), check_profile(tmp_path / "p.json"), count)


# Found by search or by thought: each hung, took gigabytes, or wrote commands to the terminal.
CASES: dict[str, tuple[bytes, str]] = {
    "a key of very many parts": (
        b".".join([b"a"] * 300_000) + b" = 1",
        "a key of more than 32 parts (at line 1)",
    ),
    "a table of very many parts": (
        CLUSTER_FILES[1] + b'\n["a"' + b' . "\\"]."' * 10_000 + b"]",
        "a key of more than 32 parts (at line 4)",
    ),
    "quotes without end": (b'a = "' + b'\\"' * 10**5, "is not TOML"),
    "nested without end": (b"a = " + b"[" * 10**6, "nested too deeply"),
    "too long": (b"# " + b"x" * 5 * 2**20, "more than 4 MiB"),
    "kinds of hosts that alternate": (
        b'[[hosts]]\nhost="p3.16xlarge"\ncount=1\n[[hosts]]\nhost="dgx-a100"\ncount=1\n' * 2000,
        "4000 groups of hosts that differ from their neighbours; at most 1024",
    ),
    "more hosts than 64 bits": (toml_of({"num_hosts": 2**64, "host": HOST}), "less than 2**63"),
    "more hosts than there can be": (
        toml_of({"num_hosts": 2**62, "host": HOST}),
        "at most 131072 can be planned for",
    ),
    "a number of thousands of digits": (
        toml_of({"num_hosts": raw("9" * 5000), "host": HOST}),
        "is not TOML",
    ),
    "no finite number": (
        toml_of(
            {"num_hosts": 1, "host": HOST | {"link": HOST["link"] | {"latency_s": raw("inf")}}}
        ),
        "'latency_s' must be finite and zero or more",
    ),
    "a number whose sums no float holds": (
        toml_of({"num_hosts": 1, "host": HOST | {"link": HOST["link"] | {"latency_s": 1e308}}}),
        "'latency_s' must be from 1e-30 to 1e+30, got 1e+308",
    ),
    "commands to the terminal": (
        toml_of({"name": "\x1b]0;owned\x07", "num_hosts": 1, "host": HOST}),
        "'name' must be a text without control characters, got '\\x1b]0;owned\\x07'",
    ),
    "a host of a name without end": (
        toml_of({"num_hosts": 1, "host": "x" * 10**6}),
        "no host 'xxx",
    ),
    "a profile that is no file": (b'profile = "/dev/zero"', "is no regular file; name one"),
}


@pytest.mark.parametrize("name", CASES)
def test_clusters_that_are_refused(name: str, tmp_path: Path) -> None:
    data, message = CASES[name]
    path = tmp_path / "lab.toml"
    path.write_bytes(data)
    with bounded(), pytest.raises(ClusterError) as caught:
        ClusterSpec.from_file(path)
    check_error(caught.value, path)
    assert message in str(caught.value)


def test_a_profile_that_waits_for_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "profile.json")
    path = tmp_path / "lab.toml"
    path.write_text('profile = "profile.json"')
    with bounded(limit_s=5.0), pytest.raises(ClusterError, match="is no regular file"):
        ClusterSpec.from_file(path)


def test_keys_of_a_few_parts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    points = ", ".join(f"[{n}.5, {n}.25]" for n in range(1, 60))
    lines = [
        "num_hosts = 1",
        f"host.device.dense_times.float32 = [{points}]",
        'host . "num_devices" = 4',
        'host.device.source = "a.b.c.d, \\"e.f.g\\""',
        "host.device.name = 'card'",
        "host.device.memory_bytes = 16_000_000_000",
        "host.device.memory_bytes_per_s = 7e11",
        "host.device.flop_per_s = { float32 = 8.0e12 }",
        "host.link = { latency_s = 0.0, bytes_per_s = 1.5e1 }",
        "host.nic = { latency_s = 0.0, bytes_per_s = 1.5e1 }",
    ]
    path.write_text("\n".join(lines))
    host = ClusterSpec.from_file(path).host
    assert host.device.source == 'a.b.c.d, "e.f.g"'
    assert len(host.device.dense_times[0][1]) == 59


def test_profiles_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    cases = {
        "more than 8 MiB": b"[" + b"[]," * 2**22 + b"[]]",
        "key 'host' stands twice": json_of(PROFILE | {"\x02host": HOST}),
        "nested too deeply": b"[" * 10**6,
        "must be finite and above zero": json_of(
            PROFILE | {"host": HOST | {"link": {"latency_s": 0, "bytes_per_s": 10**400}}}
        ),
    }
    for message, data in cases.items():
        path.write_bytes(data)
        with bounded(), pytest.raises(ClusterError) as caught:
            read_profile(path)
        check_error(caught.value, path)
        assert message in str(caught.value)
