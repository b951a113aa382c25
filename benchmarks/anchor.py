"""GPT-2.6B on 8 V100, simulated with a rate from one V100, beside the published run."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshwise.bench.anchor import (
    MEGATRON_FLOP_PER_S,
    PUBLISHED_PEAK_BYTES,
    PUBLISHED_STEP_S,
    Simulated,
    alpa_layers,
    alpa_run,
    megatron_layers,
    rate_of_products,
)
from meshwise.bench.steps import layers_of_model
from meshwise.models.gpt_sizes import gpt_config


def anchor(quick: bool) -> dict[str, Any]:
    """GPT-2.6B on 8 V100 in simulation: rate from Megatron-LM's run on one V100.

    Goal: within 20 % of the published seconds and bytes.  Beside it the same with 39 TFLOP/s as the
    rate of products itself, and with a state in float32.
    """
    layers = alpa_layers()
    flat = alpa_run(*layers, MEGATRON_FLOP_PER_S)
    if quick:
        return {"39 TFLOP/s for products": _beside(flat)}
    rate = rate_of_products(*megatron_layers())
    wide = layers_of_model(gpt_config("2.6B", dtype="float16"), 32, blocks=True)
    return {
        "39 TFLOP/s for whole steps": _beside(alpa_run(*layers, rate)),
        "39 TFLOP/s for products": _beside(flat),
        "the first, parameters and gradients in float32": _beside(alpa_run(*wide, rate)),
    }


def _beside(found: Simulated) -> dict[str, Any]:
    return dataclasses.asdict(found) | {
        "step_over_published": found.step_time_s / PUBLISHED_STEP_S,
        "peak_over_published": found.peak_bytes / PUBLISHED_PEAK_BYTES,
    }
