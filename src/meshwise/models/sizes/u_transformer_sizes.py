"""Sizes of the U-Transformer by name, and their parameter count in closed form.

Source: U-Net suite of Alpa's benchmark (docs/facts.md section 3): latents of 32x32, four levels,
float32.  `tiny` is ours.
"""

from __future__ import annotations

from meshwise.models.sizes.size_table import SizeTable
from meshwise.models.u_transformer import UTransformerConfig

u_transformer_config = SizeTable(
    "U-Transformer",
    UTransformerConfig,
    "base_channels num_levels image_size attention_groups",
    {
        "tiny": (16, 3, 16, 4),
        "470M": (320, 4, 32, 32),
        "1B": (480, 4, 32, 32),
        "1.2B": (512, 4, 32, 32),
        "1.8B": (640, 4, 32, 32),
        "2B": (672, 4, 32, 32),
    },
)


def _residual(channels_in: int, channels: int, time: int) -> int:
    """Return the parameters of two convolutions and norms, the time step, and a shortcut."""
    convolutions = 9 * (channels_in + channels) * channels + 2 * channels
    norms = 2 * (channels_in + channels)
    shortcut = (channels_in + 1) * channels if channels_in != channels else 0
    return convolutions + norms + (time + 1) * channels + shortcut


def _transformer(channels: int, context: int) -> int:
    """Return the parameters of two attentions, a gated MLP, dense layers and norms around."""
    attentions = 2 * (2 * channels * channels + channels) + 2 * (channels + context) * channels
    mlp = 3 * 4 * channels * channels + 9 * channels
    return attentions + mlp + 2 * (channels + 1) * channels + 4 * 2 * channels


def num_parameters(config: UTransformerConfig) -> int:
    """Parameters of all blocks, of the time features, of the first and the last convolution."""
    base, channels, context = config.base_channels, config.channels, config.context_shape[1]
    time = 4 * base
    total = (base + 1) * time + (time + 1) * time
    total += (9 * config.in_channels + 1) * base + (9 * base + 1) * config.out_channels + 2 * base
    before, waiting = base, [base]
    for level, width in enumerate(channels):
        total += _residual(before, width, time)
        if level < config.num_levels - 1:
            total += _transformer(width, context) + (9 * width + 1) * width
        waiting.append(width)
        before = width
    total += 2 * _residual(before, before, time) + _transformer(before, context)
    for level in reversed(range(config.num_levels)):
        width = channels[level]
        total += _residual(before + waiting.pop(), width, time)
        if level > 0:
            total += _transformer(width, context) + (9 * width + 1) * width
        before = width
    return total + _residual(before + waiting.pop(), before, time)
