"""`python -m evaluation anchor`: GPT-2.6B on 8 V100 beside the published run."""

from __future__ import annotations

import dataclasses
import json

import click

from evaluation.anchor.anchor import (
    MEGATRON_FLOP_PER_S,
    PUBLISHED_PEAK_BYTES,
    PUBLISHED_STEP_S,
    Simulated,
    alpa_layers,
    alpa_run,
    megatron_layers,
    rate_of_products,
)
from evaluation.steps import layers_of_model
from meshwise.models.sizes.gpt_sizes import gpt_config

EXAMPLES = """
\b
Examples:
  python -m evaluation anchor
      All three readings of the published rate, half a minute of one core.
\b
  python -m evaluation anchor --quick
      Only the reading that needs no search for a rate.
"""


@click.command(epilog=EXAMPLES)
@click.option("--quick", is_flag=True, help="Only with 39 TFLOP/s as the rate of products.")
def anchor(quick: bool) -> None:
    """Simulate GPT-2.6B on 8 V100 with the rate of Megatron-LM's run on one V100.

    The goal is to be within 20 % of the published seconds and bytes. Beside it stand the same run
    with 39 TFLOP/s as the rate of products itself, and with a state in float32. The result is JSON
    on the standard output.
    """
    click.echo(json.dumps(_readings(quick), indent=2))


def _readings(quick: bool) -> dict[str, dict[str, float]]:
    """Simulate the published run under each reading of the published rate."""
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


def _beside(found: Simulated) -> dict[str, float]:
    return dataclasses.asdict(found) | {
        "step_over_published": found.step_time_s / PUBLISHED_STEP_S,
        "peak_over_published": found.peak_bytes / PUBLISHED_PEAK_BYTES,
    }
