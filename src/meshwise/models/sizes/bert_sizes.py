"""Sizes of BERT by name.

Source: Devlin et al. 2018, section 3 (`base`, `large`: sequence 512, vocabulary 30,522); the BERT
models of Shoeybi et al. 2019 (Megatron-LM) for `1.3B` and `3.9B`, here with BERT's vocabulary.
`tiny` is ours.
"""

from __future__ import annotations

from meshwise.models.bert import BertConfig
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
