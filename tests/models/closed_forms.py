"""Parameters and FLOP of the models in closed form, beside those that the package itself uses."""

from __future__ import annotations

from meshwise.models.bert import NUM_SEGMENTS, BertConfig
from meshwise.models.expert_llama import ExpertLlamaConfig
from meshwise.models.gpt import GptConfig
from meshwise.models.llama import LlamaConfig
from meshwise.models.moe import MoeConfig
from meshwise.models.sizes.gpt_sizes import forward_flop
from meshwise.models.sizes.llama_sizes import layer_kernels
from meshwise.models.sizes.wide_resnet_sizes import convolutions
from meshwise.models.u_transformer import UTransformerConfig
from meshwise.models.wide_resnet import BLOCKS, EXPANSION, WideResNetConfig


def bert_parameters(config: BertConfig) -> int:
    """Parameters: `(V + S + 2) h + 2 h + L (12 h^2 + 13 h) + (h^2 + 3 h) + V`."""
    h = config.hidden
    tables = (config.vocab_size + config.seq_len + NUM_SEGMENTS) * h + 2 * h
    head = h * h + 3 * h + config.vocab_size
    return tables + config.num_layers * (12 * h * h + 13 * h) + head


def bert_forward_flop(config: BertConfig, batch: int, seq: int | None = None) -> int:
    """FLOP of the dense products of one forward pass on `batch` sequences of `seq` tokens.

    A layer takes `24 b s h^2 + 4 b s^2 h`, the head `2 b s h^2 + 2 b s h V` (logits everywhere).
    """
    s = config.seq_len if seq is None else seq
    h = config.hidden
    layer = 24 * batch * s * h * h + 4 * batch * s * s * h
    return config.num_layers * layer + 2 * batch * s * h * (h + config.vocab_size)


def training_flop(config: GptConfig, batch: int, seq: int | None = None) -> int:
    """FLOP of the dense products of a training step: forward, and twice that backward.

    With `remat` the layers count forward once more (Alpa's factor 96 in place of 72); what JAX
    traces spares the last product of each block, `8 b s h^2`, since nothing reads it again.
    """
    s = config.seq_len if seq is None else seq
    forward = forward_flop(config, batch, s)
    head = 2 * batch * s * config.hidden * config.vocab_size
    return 3 * forward + (forward - head if config.remat else 0)


def llama_parameters(config: LlamaConfig) -> int:
    """Parameters: `2 V h + L (2 h^2 + 2 h k d + 3 h f + 2 h) + h`."""
    h = config.hidden
    layers = config.num_layers * (layer_kernels(config) + 2 * h)
    return 2 * config.vocab_size * h + layers + h


def expert_llama_parameters(config: ExpertLlamaConfig) -> int:
    """Parameters of a Llama whose MLPs are E experts, a router and a shared expert."""
    one_mlp = 3 * config.hidden * config.ffn
    more = (config.num_experts - 1) * one_mlp + 3 * config.hidden * config.shared_ffn
    more += config.hidden * config.num_experts
    return llama_parameters(config) + config.num_layers * more


def moe_parameters(config: MoeConfig) -> int:
    """Parameters: attention and norms everywhere, experts in every second layer, MLPs in others."""
    h, f, experts = config.hidden, config.ffn, config.num_experts
    num_dense = config.num_layers // 2
    num_moe = config.num_layers - num_dense
    attention = 4 * h * h + 4 * h + 4 * h
    dense = 2 * h * f + f + h
    moe = h * experts + 2 * experts * h * f
    tables = (config.vocab_size + config.seq_len) * h + 2 * h
    return tables + config.num_layers * attention + num_dense * dense + num_moe * moe


def wide_resnet_parameters(config: WideResNetConfig) -> int:
    """Parameters: kernels, a scale and a bias for each channel of their results, the output."""
    kernels = sum(k * k * i * o + 2 * o for k, i, o, _ in convolutions(config))
    features = EXPANSION * config.base_channels * 2 ** (len(BLOCKS[config.num_layers]) - 1)
    return kernels + (features + 1) * config.num_classes


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


def u_transformer_parameters(config: UTransformerConfig) -> int:
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
