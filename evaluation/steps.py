"""Training steps of the paper's models, cut into layers."""

from __future__ import annotations

from typing import Any

import optax

from meshwise.baselines.pipelines.block_layers import block_ranges
from meshwise.models.mixed_precision import with_master_copy
from meshwise.models.moe import MoeConfig
from meshwise.models.steps import Config, model_step
from meshwise.models.wide_resnet import WideResNetConfig
from meshwise.planner.pipeline import layers_of
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import StepSignature

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
# Parameters and gradients in 16 bits, a float32 copy in the optimizer's state.
# Source: Alpa repository, `TrainState.create(use_master_copy=True)` where the dtype is float16.
HALF = {"dtype": "float16", "param_dtype": "float16"}
BFLOAT16 = {"dtype": "bfloat16", "param_dtype": "bfloat16"}


def optimizer_of(config: Config) -> optax.GradientTransformation:
    """As the paper's benchmarks have it.

    Source: Alpa repository, folder `benchmark/alpa`: Adam for GPT, Adafactor for mixtures of
    experts (its second moments are rows and columns: with Adam 70B would not fit into 64 V100),
    with a float32 copy of the parameters where these have 16 bits; momentum for Wide-ResNet.
    """
    if isinstance(config, WideResNetConfig):
        return optax.sgd(0.1, momentum=0.9, nesterov=True)
    tx = optax.adafactor(1e-2) if isinstance(config, MoeConfig) else optax.adam(1e-3)
    return with_master_copy(tx) if config.param_dtype in ("float16", "bfloat16") else tx


def layers_of_model(config: Config, rows: int, *, blocks: bool) -> tuple[Layering, float]:
    """Return a training step as layers, and the FLOP of its forward pass.

    Args:
        config: The model.
        rows: Batch size.
        blocks: Layers are the repeated blocks, which hand-written systems divide; else as many as
            repeat.

    Raises:
        TraceError: the step cannot be cut.
    """
    step, state, batch = model_step(config, rows, optimizer_of(config)).abstract
    args: tuple[Any, ...] = (state, batch)
    # Batch norm: as the paper's systems, statistics of each micro-batch.
    statistics = "local" if isinstance(config, WideResNetConfig) else "exact"
    cut = block_ranges if blocks else None
    return layers_of(step, args, {}, SIGNATURE, cut, statistics=statistics)
