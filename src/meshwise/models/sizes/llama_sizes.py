"""Sizes of Llama 3 by name, and their FLOP in closed form.

Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 3 (8B, 70B, 405B; vocabulary
128,256, training sequences of 8,192, theta 500,000).  `tiny` and `small` are ours.
"""

from __future__ import annotations

from meshwise.models.llama import LlamaConfig
from meshwise.models.sizes.size_table import SizeTable

llama_config = SizeTable(
    "Llama",
    LlamaConfig,
    "hidden ffn num_layers num_heads num_kv_heads seq_len vocab_size",
    {
        "tiny": (32, 64, 2, 4, 2, 32, 256),
        "small": (256, 896, 4, 8, 4, 128, 1024),
        "8B": (4096, 14336, 32, 32, 8, 8192, 128256),
        "70B": (8192, 28672, 80, 64, 8, 8192, 128256),
        "405B": (16384, 53248, 126, 128, 8, 8192, 128256),
    },
)


def layer_kernels(config: LlamaConfig) -> int:
    """Elements of the kernels of a layer: attention `2 h^2 + 2 h k d`, MLP `3 h f`."""
    h = config.hidden
    return 2 * h * h + 2 * h * config.num_kv_heads * config.head_dim + 3 * h * config.ffn


def forward_flop(config: LlamaConfig, batch: int, seq: int | None = None) -> int:
    """FLOP of the dense products of one forward pass on `batch` sequences of `seq` tokens.

    Two for each token and kernel element, and `4 b s^2 h` a layer for scores and mixing (the
    causal mask saves nothing: the products are computed in full).
    """
    s = config.seq_len if seq is None else seq
    h = config.hidden
    layer = 2 * batch * s * layer_kernels(config) + 4 * batch * s * s * h
    return config.num_layers * layer + 2 * batch * s * h * config.vocab_size
