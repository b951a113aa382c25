"""Sizes of BERT by name, and their parameter and FLOP counts in closed form.

Source: Devlin et al. 2018, section 3 (`base`, `large`: sequence 512, vocabulary 30,522); the BERT
models of Shoeybi et al. 2019 (Megatron-LM) for `1.3B` and `3.9B`, here with BERT's vocabulary.
`tiny` is ours.
"""

from __future__ import annotations

from meshwise.models.bert import NUM_SEGMENTS, BertConfig
from meshwise.models.sizes.size_table import SizeTable

bert_config = SizeTable(
    "BERT",
    BertConfig,
    "hidden num_layers num_heads seq_len vocab_size",
    {
        "tiny": (32, 2, 4, 32, 256),
        "base": (768, 12, 12, 512, 30522),
        "large": (1024, 24, 16, 512, 30522),
        "1.3B": (2048, 24, 32, 512, 30522),
        "3.9B": (2560, 48, 40, 512, 30522),
    },
)


def num_parameters(config: BertConfig) -> int:
    """Parameters: `(V + S + 2) h + 2 h + L (12 h^2 + 13 h) + (h^2 + 3 h) + V`."""
    h = config.hidden
    tables = (config.vocab_size + config.seq_len + NUM_SEGMENTS) * h + 2 * h
    head = h * h + 3 * h + config.vocab_size
    return tables + config.num_layers * (12 * h * h + 13 * h) + head


def forward_flop(config: BertConfig, batch: int, seq: int | None = None) -> int:
    """FLOP of the dense products of one forward pass on `batch` sequences of `seq` tokens.

    A layer takes `24 b s h^2 + 4 b s^2 h`, the head `2 b s h^2 + 2 b s h V` (logits everywhere).
    """
    s = config.seq_len if seq is None else seq
    h = config.hidden
    layer = 24 * batch * s * h * h + 4 * batch * s * s * h
    return config.num_layers * layer + 2 * batch * s * h * (h + config.vocab_size)
