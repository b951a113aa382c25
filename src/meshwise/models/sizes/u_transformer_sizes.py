"""Sizes of the U-Transformer by name.

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
