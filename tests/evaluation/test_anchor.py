"""A published run of eight GPUs from a published run of one."""

from __future__ import annotations

import pytest
from evaluation.anchor.anchor import (
    MEGATRON_FLOP,
    MEGATRON_ROWS,
    MEGATRON_STEP_S,
    PUBLISHED_PEAK_BYTES,
    PUBLISHED_STEP_S,
    alpa_layers,
    alpa_run,
    megatron_layers,
    megatron_run,
    rate_of_products,
)
from evaluation.rates import first_devices, with_rate

from meshwise.cluster.spec import ClusterSpec
from meshwise.models.sizes.gpt_sizes import gpt_config
from models.closed_forms import training_flop


def test_the_published_flop_count_recomputation() -> None:
    config = gpt_config("1.3B", hidden=1536, num_layers=40, num_heads=16, remat=True)
    spared = 8 * MEGATRON_ROWS * config.seq_len * config.hidden**2 * config.num_layers
    traced = training_flop(config, MEGATRON_ROWS) - spared
    assert pytest.approx(traced, rel=0.005) == MEGATRON_FLOP


def test_only_the_rate_of_one_dtype_changes() -> None:
    cluster = ClusterSpec.virtual("2x p3.16xlarge")
    changed = with_rate(cluster, "float16", 1e12, "a test")
    assert changed.device.rate("float16") == 1e12
    assert changed.device.rate("float32") == cluster.device.rate("float32")
    assert changed.device.source.endswith("float16 products: a test")
    assert (changed.num_devices, changed.nic) == (16, cluster.nic)
    assert first_devices(changed, 1).num_devices == 1
    assert first_devices(changed, 1).device == changed.device


@pytest.mark.slow
def test_gpt_2_6b_on_eight_v100_takes_what_was_published() -> None:
    """Seconds and bytes within 20 %, with a rate from one GPU and no other constant."""
    one = megatron_layers()
    rate = rate_of_products(*one)
    assert megatron_run(*one, rate).step_time_s == pytest.approx(MEGATRON_STEP_S, rel=1e-3)
    found = alpa_run(*alpa_layers(), rate)
    assert found.step_time_s == pytest.approx(PUBLISHED_STEP_S, rel=0.2)
    assert found.peak_bytes == pytest.approx(PUBLISHED_PEAK_BYTES, rel=0.2)
