"""Sizes of GPT by name, and their parameter and FLOP counts in closed form.

Source: Alpa section 8.1 (docs/facts.md section 6) for 350M to 39B, the Alpa repository for the
others; all of these with sequence 1024 and vocabulary 51200; Brown et al. 2020, table 2.1, for
175B (sequence 2048), with the vocabulary of the others.  `15B` has the repository's 40 heads,
`15B-paper` the paper's 32.  The sizes below 1M parameters are ours, on bytes.
"""

from __future__ import annotations

from meshwise.models.gpt import GptConfig
from meshwise.models.sizes.size_table import SizeTable

BYTES = 256

gpt_config = SizeTable(
    "GPT",
    GptConfig,
    "hidden num_layers num_heads seq_len vocab_size",
    {
        "tiny": (32, 2, 4, 32, BYTES),
        "mini": (64, 2, 4, 64, BYTES),
        "small": (128, 4, 8, 128, BYTES),
        "medium": (256, 4, 8, 256, BYTES),
        "125M": (768, 12, 12, 1024, 51200),
        "350M": (1024, 24, 16, 1024, 51200),
        "760M": (1536, 24, 16, 1024, 51200),
        "1.3B": (2048, 24, 32, 1024, 51200),
        "2.6B": (2560, 32, 32, 1024, 51200),
        "6.7B": (4096, 32, 32, 1024, 51200),
        "15B": (5120, 48, 40, 1024, 51200),
        "15B-paper": (5120, 48, 32, 1024, 51200),
        "39B": (8192, 48, 64, 1024, 51200),
        "76B": (10240, 60, 80, 1024, 51200),
        "175B": (12288, 96, 96, 2048, 51200),
    },
)


def num_parameters(config: GptConfig) -> int:
    """Return the number of parameters, `V h + S h + L (12 h^2 + 13 h) + 2 h`.

    Args:
        config: The configuration of a GPT.
    """
    h = config.hidden
    block = 12 * h * h + 13 * h
    return (config.vocab_size + config.seq_len) * h + config.num_layers * block + 2 * h


def forward_flop(config: GptConfig, batch: int, seq: int | None = None) -> int:
    """FLOP of the dense products of one forward pass on `batch` sequences of `seq` tokens.

    A layer takes `24 b s h^2 + 4 b s^2 h`, the output embedding `2 b s h V`.  The causal mask
    saves nothing: the products are computed in full.

    Source: Alpa's `compute_gpt_tflops`, a third of its factor 72 and of its `6 b s h V`.
    """
    s = config.seq_len if seq is None else seq
    h = config.hidden
    layer = 24 * batch * s * h * h + 4 * batch * s * s * h
    return config.num_layers * layer + 2 * batch * s * h * config.vocab_size
