"""One configuration of each model, large enough that latency does not rule, with a batch size."""

from __future__ import annotations

from collections.abc import Mapping

from meshwise.models.bert import BertConfig
from meshwise.models.llama import LlamaConfig
from meshwise.models.moe import MoeConfig
from meshwise.models.steps import Config
from meshwise.models.u_transformer import UTransformerConfig
from meshwise.models.wide_resnet import WideResNetConfig

CONFIGS: Mapping[str, tuple[Config, int]] = {
    "llama": (
        LlamaConfig(
            vocab_size=512, seq_len=128, hidden=128, ffn=384, num_layers=2, num_heads=8,
            num_kv_heads=4,
        ),
        32,
    ),
    "bert": (
        BertConfig(vocab_size=512, seq_len=128, hidden=128, num_layers=2, num_heads=8),
        32,
    ),
    "moe": (
        MoeConfig(
            vocab_size=512, seq_len=128, hidden=128, ffn=512, num_layers=2, num_heads=8,
            num_experts=8, group_size=128,
        ),
        32,
    ),
    "wide-resnet": (
        WideResNetConfig(
            num_layers=14, base_channels=32, width_factor=2, num_classes=64, image_size=64
        ),
        64,
    ),
    "u-transformer": (UTransformerConfig(base_channels=64, num_levels=2, image_size=16), 64),
}  # fmt: skip
