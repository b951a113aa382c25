"""Sizes of the GShard transformer by name, and their FLOP in closed form.

Source: Alpa section 8.1 (docs/facts.md section 6): sequence 1024, vocabulary 32000, groups of 2048
tokens.
Inside, MLPs and experts are eight times as wide as the stream, as in Alpa's benchmark: that is
what makes a size as large as its name says.  `27B` and `70B` have the repository's 16 heads,
`27B-paper` and `70B-paper` the paper's 32.  `tiny` and `small` are ours.
"""

from __future__ import annotations

from meshwise.models.moe import MoeConfig
from meshwise.models.sizes.size_table import SizeTable

moe_config = SizeTable(
    "MoE",
    MoeConfig,
    "hidden ffn num_layers num_heads num_experts seq_len vocab_size group_size",
    {
        "tiny": (32, 256, 2, 4, 4, 32, 256, 16),
        "small": (256, 2048, 4, 8, 8, 128, 1024, 128),
        "380M": (768, 6144, 8, 16, 8, 1024, 32000, 2048),
        "1.3B": (768, 6144, 16, 16, 16, 1024, 32000, 2048),
        "2.4B": (1024, 8192, 16, 16, 16, 1024, 32000, 2048),
        "10B": (1536, 12288, 16, 16, 32, 1024, 32000, 2048),
        "27B": (2048, 16384, 16, 16, 48, 1024, 32000, 2048),
        "27B-paper": (2048, 16384, 16, 32, 48, 1024, 32000, 2048),
        "70B": (2048, 16384, 32, 16, 64, 1024, 32000, 2048),
        "70B-paper": (2048, 16384, 32, 32, 64, 1024, 32000, 2048),
    },
)


def forward_flop(config: MoeConfig, batch: int, seq: int | None = None) -> int:
    """FLOP of the dense products of one forward pass on `batch` sequences of `seq` tokens.

    A token's `E C / S` places in the experts are computed whether they are taken or not; gating
    takes `2 T h E`, dispatch and combine `2 T E C h` each, for T tokens.
    """
    s = config.seq_len if seq is None else seq
    h, f, experts, places = config.hidden, config.ffn, config.num_experts, config.capacity
    tokens = batch * s
    num_dense = config.num_layers // 2
    num_moe = config.num_layers - num_dense
    attention = 8 * tokens * h * h + 4 * tokens * s * h
    dense = 4 * tokens * h * f
    slots = tokens // config.group_size * experts * places
    moe = 2 * tokens * h * experts + 4 * tokens * experts * places * h + 4 * slots * h * f
    head = 2 * tokens * h * config.vocab_size
    return config.num_layers * attention + num_dense * dense + num_moe * moe + head
