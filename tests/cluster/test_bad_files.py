"""Descriptions and texts that are wrong: each error names place and value, and says what to do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.description.profile import (
    CollectivePoint,
    MatmulPoint,
    MemoryPoint,
    Profile,
    read_profile,
)
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError

LAB = """
name = "lab"
num_hosts = 2
[host]
num_devices = 4
link = { latency_s = 0.0, bytes_per_s = 1e11 }
nic = { latency_s = 3e-5, bytes_per_s = 1.25e9 }
num_nics = 2
[host.device]
name = "card"
memory_bytes = 16000000000
memory_bytes_per_s = 7e11
flop_per_s = { float32 = 8e12, bfloat16 = 6e13 }
source = "measured 2026-11-20"
dense_times = { float32 = [[1e9, 1e-3], [2e9, 2e-3]] }
[host.peak]
flop_per_s = { float32 = 9e12 }
memory_bytes = 17000000000
memory_bytes_per_s = 8e11
link_bytes_per_s = 2e11
nic_bytes_per_s = 2e9
"""

# Name, a part of LAB, what stands there instead, a part of the error.
CHANGES = (
    ("no number of hosts", "num_hosts = 2", "", "key 'num_hosts' is missing; add it"),
    ("no hosts", "num_hosts = 2", "num_hosts = 0", "whole number above zero, got 0"),
    ("negative hosts", "num_hosts = 2", "num_hosts = -4", "whole number above zero, got -4"),
    ("half a host", "num_hosts = 2", "num_hosts = 2.5", "whole number above zero, got 2.5"),
    ("bool as number", "num_hosts = 2", "num_hosts = true", "whole number above zero, got True"),
    ("text as number", "num_hosts = 2", 'num_hosts = "2"', "whole number above zero, got '2'"),
    (
        "huge count",
        "num_hosts = 2",
        "num_hosts = 1000000000",
        "4000000000 devices; at most 131072 can be planned for",
    ),
    (
        "count beyond 64 bits",
        "num_hosts = 2",
        f"num_hosts = {10**30}",
        "must be less than 2**63, got 1000",
    ),
    ("unknown key", "num_hosts = 2", "num_hosts = 2\nracks = 1", "unknown key 'racks'; known"),
    ("unknown key of a host", "num_nics = 2", "nics = 2", "host: unknown key 'nics'; known: name,"),
    ("no NICs", "num_nics = 2", "num_nics = 0", "'num_nics' must be a whole number above zero"),
    ("no devices", "num_devices = 4", "num_devices = 0", "host: 'num_devices' must be a whole"),
    ("name that is no text", 'name = "lab"', "name = 3", "'name' must be a text, got 3"),
    ("empty name", 'name = "lab"', 'name = " "', "'name' must not be empty, got ' '"),
    ("text as bandwidth", "1.25e9", '"fast"', "host.nic: 'bytes_per_s' must be a number"),
    ("no bandwidth", "1.25e9", "0.0", "host.nic: 'bytes_per_s' must be finite and above zero"),
    ("negative bandwidth", "1.25e9", "-1.0", "must be finite and above zero, got -1.0"),
    ("bandwidth not a number", "1.25e9", "nan", "must be finite and above zero, got nan"),
    ("infinite bandwidth", "1.25e9", "inf", "must be finite and above zero, got inf"),
    ("bandwidth beyond a float", "1.25e9", f"1{'0' * 400}", "must be finite and above zero"),
    ("negative latency", "3e-5", "-3e-5", "must be finite and zero or more, got -3e-05"),
    ("no latency", "latency_s = 3e-5, ", "", "host.nic: key 'latency_s' is missing"),
    ("a number as link", "{ latency_s = 0.0, bytes_per_s = 1e11 }", "1e11", "host.link must be a"),
    ("fraction of a byte", "16000000000", "1.6e10", "'memory_bytes' must be a whole number"),
    (
        "a number as rates",
        "{ float32 = 8e12, bfloat16 = 6e13 }",
        "8e12",
        "host.device: 'flop_per_s' must be a table of dtype names with FLOP/s, got 8000000000000",
    ),
    (
        "no rates",
        "{ float32 = 8e12, bfloat16 = 6e13 }",
        "{}",
        "must be a table of dtype names with FLOP/s, got {}",
    ),
    ("bool as rate", "8e12", "true", "flop_per_s: 'float32' must be a number, got True"),
    ("unknown dtype", "bfloat16", "fp16", "no dtype 'fp16'; known: float64, float32"),
    (
        "no rate for float32",
        "float32 = 8e12, ",
        "",
        "'flop_per_s' has no rate for float32, only for bfloat16; add it, as `float32 = 8e12`",
    ),
    ("no source", 'source = "measured 2026-11-20"', "", "host.device: key 'source' is missing"),
    (
        "times that do not ascend",
        "[2e9, 2e-3]",
        "[2e9, 5e-4]",
        "dense_times.float32[1]: FLOP and seconds must ascend, got [2000000000.0, 0.0005] after",
    ),
    ("time without FLOP", "[2e9, 2e-3]", "[2e-3]", "must be a pair [FLOP, seconds], got [0.002]"),
    ("empty list of times", "[[1e9, 1e-3], [2e9, 2e-3]]", "[]", "at least one pair"),
    ("a number as list of times", "[[1e9, 1e-3], [2e9, 2e-3]]", "3", "must be a list, got 3"),
    (
        "more than the peak",
        "float32 = 9e12",
        "float32 = 7e12",
        "the rate of float32, 8e+12, is above its peak, 7e+12; swap them or correct one",
    ),
    ("more memory than the peak", "17000000000", "15000000000", "the memory, 1.6e+10, is above"),
    ("not TOML", "num_hosts = 2", "num_hosts =", "is not TOML: Invalid value"),
    ("a key twice", "num_hosts = 2", "num_hosts = 2\nnum_hosts = 3", "is not TOML: Cannot overwr"),
    ("deep nesting", '"lab"', "[" * 5000 + "]" * 5000, "is not TOML: nested too deeply"),
    ("digits without end", "num_hosts = 2", f"num_hosts = {'7' * 5000}", "is not TOML: Exceeds"),
    (
        "hosts and host",
        '[host]',
        '[[hosts]]\ncount = 1\nhost = "h200"\n[host]',
        "'hosts' and 'num_hosts' exclude each other; write 'num_hosts' into each [[hosts]]",
    ),
)  # fmt: skip

# Name, whole text, a part of the error.
TEXTS = (
    ("nothing", "", "key 'num_hosts' is missing"),
    ("JSON", '{"num_hosts": 2}', "a profile in JSON is read by Cluster.from_profile"),
    ("no groups", "hosts = []", "'hosts' is empty; write at least one [[hosts]]"),
    ("a number as groups", "hosts = 3", "hosts must be a list, got 3"),
    ("group that is no table", "hosts = [3]", "hosts[0] must be a table, got 3; its keys are coun"),
    ("group without count", '[[hosts]]\nhost = "h200"', "hosts[0]: key 'count' is missing"),
    ("group without host", "[[hosts]]\ncount = 2", "hosts[0]: key 'host' is missing"),
    ("empty group", '[[hosts]]\ncount = 0\nhost = "h200"', "hosts[0]: 'count' must be a whole"),
    (
        "unknown key of a group",
        '[[hosts]]\ncount = 1\nhost = "h200"\nrack = 3',
        "hosts[0]: unknown key 'rack'; known: count, name, host",
    ),
    (
        "unknown host of a group",
        '[[hosts]]\ncount = 1\nhost = "h200"\n[[hosts]]\ncount = 1\nhost = "cray"',
        "hosts[1]: host: no host 'cray' in the catalog; known: p3.2xlarge",
    ),
    ("unknown host", 'num_hosts = 1\nhost = "cray"', "no host 'cray' in the catalog"),
    ("a number as host", "num_hosts = 1\nhost = 7", "host must be a table, got 7"),
    (
        "two kinds of one name",
        '[[hosts]]\ncount = 1\nhost = "h200"\n[[hosts]]\ncount = 1\nhost = "dgx-h100"\n'
        'name = "h200"',
        "hosts[1]: another kind of host is called 'h200' too; give each kind its own name",
    ),
    ("profile and host", 'profile = "p.json"\nhost = "h200"', "'host' and 'profile' exclude each"),
    ("profile that is not there", 'profile = "p.json"', "cannot read profile "),
    ("wrong NIC of a group", 'num_hosts = 1\nhost = "h200"\nnic = 3', "nic must be a table, got 3"),
)  # fmt: skip


def written(folder: Path, text: str | bytes, name: str = "cluster.toml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def error_of(make: Callable[[], object]) -> str:
    with pytest.raises(ClusterError) as caught:
        make()
    return str(caught.value)


def test_the_description_that_the_cases_change_is_right(tmp_path: Path):
    cluster = ClusterSpec.from_file(written(tmp_path, LAB))
    assert (cluster.num_devices, cluster.nic.bytes_per_s) == (8, 2.5e9)
    assert cluster.device.dense_s(1.5e9, "float32") == pytest.approx(1.5e-3)


@pytest.mark.parametrize(
    ("old", "new", "told"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES]
)
def test_a_wrong_value_is_refused(tmp_path: Path, old: str, new: str, told: str):
    assert LAB.count(old) >= 1
    path = written(tmp_path, LAB.replace(old, new, 1))
    error = error_of(lambda: ClusterSpec.from_file(path))
    assert told in error
    assert error.startswith(f"cluster file {path}")


@pytest.mark.parametrize(
    ("text", "told"), [case[1:] for case in TEXTS], ids=[case[0] for case in TEXTS]
)
def test_a_wrong_description_is_refused(tmp_path: Path, text: str, told: str):
    path = written(tmp_path, text)
    assert told in error_of(lambda: ClusterSpec.from_file(path))


def test_what_is_no_file_of_text_is_refused(tmp_path: Path):
    def told(path: Path) -> str:
        return error_of(lambda: ClusterSpec.from_file(path))

    assert "it is a folder; name a file in it" in told(tmp_path)
    assert "No such file" in told(tmp_path / "none.toml")
    assert "byte 8 is not UTF-8; save it as UTF-8" in told(written(tmp_path, b'name = "\xff"'))
    assert "cannot read cluster file" in told(Path("a\0b.toml"))
    assert "more than 4 MiB" in told(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a cluster: ''"),
        ("8x", "write the number of hosts and their kind, as '8x p3.16xlarge' or"),
        ("0x h200", "not a cluster: '0x h200'"),
        ("-1x h200", "not a cluster"),
        ("1.5x h200", "not a cluster"),
        ("h200 +", "not a cluster"),
        ("h200 + + h200", "not a cluster"),
        ("2x h200, 2x dgx-h100", "not a cluster"),
        ("two x h200", "not a cluster"),
        ("²x h200", "not a cluster"),
        ("2x p9", "no host 'p9' in the catalog; known: p3.2xlarge, .*TOML file"),
        ("100000x h200", "800000 devices; at most 131072"),
        (f"{'9' * 5000}x h200", "devices; at most 131072"),
        ("none.toml", "cannot read cluster file none.toml: No such file"),
        ("none.json", "cannot read profile none.json: No such file"),
    ],
)
def test_a_text_that_names_no_cluster_is_refused(text: str, told: str):
    with pytest.raises(ClusterError, match=told):
        ClusterSpec.named(text)


# -- right descriptions -------------------------------------------------------------------------

GROUPS = """
[[hosts]]
count = 2
host = "p3.16xlarge"
[[hosts]]
count = 3
host = "p3.16xlarge"
nic = { latency_s = 1e-4, bytes_per_s = 1.25e9 }
[[hosts]]
count = 1
name = "box"
[hosts.host]
num_devices = 2
link = { latency_s = 0, bytes_per_s = 1e11 }
nic = { latency_s = 3e-5, bytes_per_s = 1e9 }
[hosts.host.device]
name = "card"
memory_bytes = 16000000000
memory_bytes_per_s = 7e11
flop_per_s = { float32 = 8e12 }
source = "test"
"""


def test_groups_with_their_own_nics(tmp_path: Path):
    cluster = ClusterSpec.from_file(written(tmp_path, GROUPS))
    assert [(g.count, g.host.name) for g in cluster.groups] == [
        (2, "p3.16xlarge"), (3, "p3.16xlarge with 1 x 1.25 GB/s NIC"), (1, "box"),
    ]  # fmt: skip
    assert cluster.num_devices == 42
    plain, slow, box = (group.host for group in cluster.groups)
    assert slow == dataclasses.replace(plain, name=slow.name, nic=slow.nic)
    assert slow.nic.bytes_per_s == 1.25e9
    assert box.num_nics == 1
    assert cluster.name.endswith("1x box")


def test_equal_groups_join(tmp_path: Path):
    text = '[[hosts]]\ncount = 2\nhost = "h200"\n' * 2
    assert ClusterSpec.from_file(written(tmp_path, text)) == ClusterSpec.virtual("4x h200")


# -- profiles -----------------------------------------------------------------------------------


def profile() -> Profile:
    host = cpu_cluster(8).host
    times = (("float32", ((4e6, 1e-4), (3e7, 6e-4))),)
    device = dataclasses.replace(host.device, dense_times=times)
    return Profile(
        created="2026-11-22T05:00:00+00:00",
        command="meshwise calibrate",
        versions=(("jax", "0.10.2"), ("python", "3.11.2")),
        platform="cpu",
        device_kind="cpu",
        host=dataclasses.replace(host, device=device),
        matmul=(MatmulPoint(dtype="float32", size=128, seconds=1e-4),),
        memory=(MemoryPoint(num_bytes=2**20, seconds=1e-3),),
        collectives=(
            CollectivePoint(kind="all-reduce", group_size=8, num_bytes=4096, seconds=1e-3),
        ),
    )


def edited(folder: Path, **changes: Any) -> Path:
    """A profile in which fields are replaced; `...` takes one out."""
    data = json.loads(profile().to_json()) | changes
    text = json.dumps({key: value for key, value in data.items() if value is not ...})
    return written(folder, text, "profile.json")


def test_a_profile_reads_back_equal(tmp_path: Path):
    path = written(tmp_path, profile().to_json(), "profile.json")
    assert read_profile(path) == profile()
    cluster = ClusterSpec.from_profile(path)
    assert cluster.host == profile().host
    assert ClusterSpec.named(str(path)) == cluster
    assert profile().matmul[0].flop == 2 * 128**3


def test_a_description_names_a_profile_beside_it(tmp_path: Path):
    written(tmp_path, profile().to_json(), "p.json")
    one = ClusterSpec.from_file(written(tmp_path, 'profile = "p.json"'))
    assert one.groups[0].host == profile().host
    text = '[[hosts]]\ncount = 3\nprofile = "p.json"\nnum_nics = 2\n[[hosts]]\nprofile = "p.json"'
    cluster = ClusterSpec.from_file(written(tmp_path, text))
    assert [(g.count, g.host.num_nics) for g in cluster.groups] == [(3, 2), (1, 1)]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": "meshwise-plan"}, "is not one: the field 'format' must be 'meshwise-profile'"),
        ({"format": ...}, "write one with `meshwise calibrate --out FILE`"),
        ({"version": 2}, "is of version 2, this program reads version 1; calibrate again"),
        ({"version": True}, "is of version True"),
        ({"version": ...}, "is of version None"),
        ({"host": ...}, "key 'host' is missing"),
        ({"host": 3}, "host must be a table, got 3"),
        ({"speed": 3}, "unknown key 'speed'"),
        ({"created": 3}, "'created' must be a text"),
        ({"versions": 3}, "versions must be a table, got 3"),
        ({"versions": {"jax": 10}}, "'jax' must be a text, got 10"),
        ({"measured": {"matmul": [], "memory": []}}, "key 'collectives' is missing"),
        ({"measured": []}, "measured must be a table"),
        (
            {"measured": {"matmul": [{"dtype": "fp8", "size": 8, "seconds": 1.0}]}},
            r"matmul\[0\]: no dtype 'fp8'",
        ),
        (
            {"measured": {"matmul": [{"dtype": "int8", "size": 8, "seconds": float("nan")}]}},
            r"matmul\[0\]: 'seconds' must be finite and above zero, got nan",
        ),
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, changes: dict[str, Any], told: str):
    with pytest.raises(ClusterError, match=told):
        read_profile(edited(tmp_path, **changes))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not JSON: .*; a profile is written by `meshwise calibrate`"),
        (profile().to_json()[:-20], "is not JSON"),
        ("[]", "is not one"),
        ("3", "is not one"),
        ('{"format": 1, "format": 2}', "key 'format' stands twice"),
        ("[" * 100000, "nested too deeply"),
        (f'{{"version": {"7" * 5000}}}', "is not JSON: Exceeds the limit"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str | bytes, told: str):
    path = written(tmp_path, text, "profile.json")
    with pytest.raises(ClusterError, match=told):
        ClusterSpec.from_profile(path)


def test_there_are_at_least_thirty_kinds():
    assert len({case[0] for case in (*CHANGES, *TEXTS)}) == len(CHANGES) + len(TEXTS) >= 30
