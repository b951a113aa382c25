"""Targets by name, and how their compilers name devices."""

from __future__ import annotations

import pytest

import meshwise as mw
from meshwise.errors import ClusterError
from meshwise.targets.catalog import TARGETS, compile_target, target_of
from meshwise.targets.gpus import GPUS
from meshwise.targets.reserve import reserves, usable_bytes


def test_gpus_are_hosts_of_eight() -> None:
    h100 = compile_target("h100")
    assert [h100.slice(n).options["topology"] for n in (1, 2, 3, 8, 12, 64)] == [
        *("1x1x1", "1x1x2", "1x1x3", "1x1x8", "1x3x4", "1x8x8")
    ]


def test_properties_are_a_text_that_names_the_device() -> None:
    for target in GPUS:
        text = target.gpu.text()
        assert target.slice(8).options["target_config"] == text
        assert f"device_memory_size: {target.memory_bytes} " in text
        assert f'"{target.gpu.description}"' in text


def test_devices_of_the_catalog_have_targets() -> None:
    device = mw.Cluster.virtual("1x dgx-h100").mesh((8,)).device
    assert target_of(device.name) is compile_target("h100")
    with pytest.raises(ClusterError, match="no compiler is known for abacus; name a target: v100"):
        target_of("abacus")


def test_a_mesh_of_tpus_is_a_slice() -> None:
    v5e, v5p = compile_target("v5e"), compile_target("v5p")
    assert [v5e.slice(n).name for n in (1, 2, 4, 8, 16, 256)] == [
        *("v5e:1x1", "v5e:2x2", "v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:16x16")
    ]
    assert [v5p.slice(n).name for n in (4, 16, 128)] == ["v5p:2x2x1", "v5p:2x2x4", "v5p:4x4x8"]
    assert target_of("TPU v5e") is v5e
    for count in (3, 6, 24, 257):
        with pytest.raises(ClusterError, match=f"no slice of v5e has {count} devices; there are"):
            v5e.slice(count)


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(ClusterError, match="no target 'h10'; there are v100, a100-40"):
        compile_target("h10")


def test_what_is_kept_back_has_names() -> None:
    for target in TARGETS.values():
        parts = reserves(target)
        assert all(name and num_bytes > 0 for name, num_bytes in parts.items())
        assert usable_bytes(target) == target.memory_bytes - sum(parts.values())
