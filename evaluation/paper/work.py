"""FLOP of a training step by the paper's count: everything is computed twice but the output."""

from __future__ import annotations

from meshwise.models.gpt import GptConfig
from meshwise.models.llama import LlamaConfig
from meshwise.models.moe import MoeConfig
from meshwise.models.sizes import gpt_sizes, llama_sizes, moe_sizes, wide_resnet_sizes
from meshwise.models.steps import Config
from meshwise.models.wide_resnet import WideResNetConfig

_WITH_RECOMPUTATION, _WITHOUT = 4, 3


def paper_flop(config: Config, rows: int) -> int:
    """Forward four times over for layers, three times for the output embedding.

    For GPT these are the factor 96 and the `6 b s h V` of the paper, whatever a plan recomputes.

    Raises:
        TypeError: the paper has no such model.

    Source: Alpa section 8.1; `compute_gpt_tflops` of its repository.
    """
    match config:
        case GptConfig():
            forward = gpt_sizes.forward_flop(config, rows)
        case LlamaConfig():
            forward = llama_sizes.forward_flop(config, rows)
        case MoeConfig():
            forward = moe_sizes.forward_flop(config, rows)
        case WideResNetConfig():
            return _WITH_RECOMPUTATION * wide_resnet_sizes.forward_flop(config, rows)
        case _:
            raise TypeError(f"the paper has no {type(config).__name__}")
    head = 2 * rows * config.seq_len * config.hidden * config.vocab_size
    return _WITH_RECOMPUTATION * (forward - head) + _WITHOUT * head
