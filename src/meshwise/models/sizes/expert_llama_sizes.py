"""Sizes of Llamas of experts by name.

Source: Jiang et al. 2024 (Mixtral 8x7B, table 1); Meta 2025 (Llama 4 Scout, its published
configuration); DeepSeek-AI 2024 (DeepSeek-V3, section 4.2), with grouped-query attention in place
of its latent attention and experts in its first three layers too.  `tiny` is ours.
"""

from __future__ import annotations

from meshwise.models.expert_llama import ExpertLlamaConfig
from meshwise.models.sizes.size_table import SizeTable

expert_llama_config = SizeTable(
    "Llama of experts",
    ExpertLlamaConfig,
    "hidden ffn num_layers num_heads num_kv_heads seq_len vocab_size num_experts "
    "experts_per_token shared_ffn gate",
    {
        "tiny": (32, 64, 2, 4, 2, 32, 256, 8, 2, 64, "softmax"),
        "mixtral-8x7B": (4096, 14336, 32, 32, 8, 4096, 32000, 8, 2, 0, "softmax"),
        "llama-4-scout": (5120, 8192, 48, 40, 8, 8192, 202048, 16, 1, 8192, "sigmoid"),
        "deepseek-v3": (7168, 2048, 61, 56, 8, 4096, 129280, 256, 8, 2048, "sigmoid"),
    },
)
