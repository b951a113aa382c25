"""Hosts with accelerators as JAX sees them, by the data sheets of the catalog."""

from __future__ import annotations

import pytest

import meshwise as mw
from meshwise.api.local_cluster import accelerator_host
from meshwise.errors import ClusterError


@pytest.mark.parametrize(("num_devices", "factor"), [(1, 2), (4, 1), (8, 1)])
def test_a_single_gpu_has_the_way_to_the_memory_of_the_host_alone(
    num_devices: int, factor: int
) -> None:
    whole = mw.Cluster.virtual("1x dgx-h100").host.device
    found = accelerator_host("NVIDIA H100 80GB HBM3", num_devices, None).device
    assert found.host_bytes_per_s == factor * whole.host_bytes_per_s
    assert found.memory_bytes == whole.memory_bytes


def test_a_single_gpu_of_a_process_among_others_shares_the_way() -> None:
    whole = mw.Cluster.virtual("1x dgx-h100").host.device
    found = accelerator_host("NVIDIA H100 80GB HBM3", 1, None, has_neighbours=True).device
    assert found.host_bytes_per_s == whole.host_bytes_per_s


def test_an_accelerator_without_a_data_sheet_is_named() -> None:
    with pytest.raises(ClusterError, match="no data sheet for device 'GTX 1080'"):
        accelerator_host("GTX 1080", 1, None)
