"""A Llama whose MLPs are experts without capacities: no token is dropped, in Flax Linen.

Each token goes to its `k` best experts, whose SwiGLU results are weighted and summed; a shared
expert, if there is one, takes every token.  The tokens of a sequence are sorted by expert, and one
ragged product multiplies each with the matrix of its expert.

Source: Jiang et al. 2024 (Mixtral of Experts), section 2.1; DeepSeek-AI 2024 (DeepSeek-V3), section
2.1.2, without its bias that balances experts; Gale et al. 2023 (MegaBlocks) for products without
capacities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from meshwise.models.llama import (
    INIT_STDDEV,
    Llama,
    LlamaBlock,
    LlamaConfig,
    LlamaMlp,
    normal,
    out_stddev,
)
from meshwise.models.precision import wide_dtype

# Rows `[batch, token, feature]` in groups, with a matrix of `[group, feature, out]` for each.
_ROWS_BY_GROUP = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((2,), (1,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[0],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLlamaConfig(LlamaConfig):
    """What a Llama of experts is made of.

    Attributes:
        ffn: Width inside one expert.
        num_experts: Experts of a layer.
        experts_per_token: To how many of them each token goes (k).
        shared_ffn: Width of the shared expert, which takes all tokens; 0 for none.
        gate: Weights are a softmax over the k scores, or a sigmoid of each score, scaled to a sum
            of 1 if k > 1.
    """

    num_experts: int
    experts_per_token: int
    shared_ffn: int = 0
    gate: Literal["softmax", "sigmoid"] = "softmax"

    def __post_init__(self) -> None:
        """Check the numbers of heads and experts.

        Raises:
            ValueError: heads do not divide, or a token goes to more experts than there are.
        """
        LlamaConfig.__post_init__(self)
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"a token cannot go to {self.experts_per_token} of {self.num_experts} experts"
            )


def router(config: ExpertLlamaConfig) -> nn.Dense:
    """Return the layer that scores the experts for each token; called in a compact method."""
    return nn.Dense(
        config.num_experts, use_bias=False, kernel_init=normal(INIT_STDDEV), name="router",
        dtype=wide_dtype(config), param_dtype=config.param_dtype,
    )  # fmt: skip


class Experts(nn.Module):
    """A mixture of SwiGLU experts, `[batch, seq, hidden] -> [batch, seq, hidden]`."""

    config: ExpertLlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Send each token through its experts."""
        c = self.config
        batch, seq, hidden = x.shape
        scores, chosen = lax.top_k(router(c)(x), c.experts_per_token)
        weights = _weights(c, scores).astype(c.dtype)
        experts = chosen.reshape(batch, -1)
        order = jnp.argsort(experts, axis=-1, stable=True)
        sizes = jax.vmap(partial(jnp.bincount, length=c.num_experts))(experts)
        rows = _rows(x, order // c.experts_per_token)

        def product(name: str, rows: jax.Array, width: int, stddev: float) -> jax.Array:
            shape = (c.num_experts, rows.shape[-1], width)
            kernel = self.param(name, normal(stddev), shape, c.param_dtype)
            return lax.ragged_dot_general(rows, kernel.astype(c.dtype), sizes, _ROWS_BY_GROUP)

        inner = nn.silu(product("gate", rows, c.ffn, INIT_STDDEV))
        inner = inner * product("up", rows, c.ffn, INIT_STDDEV)
        sorted_results = product("down", inner, hidden, out_stddev(c))
        results = _rows(sorted_results, jnp.argsort(order, axis=-1))
        results = results.reshape(batch, seq, c.experts_per_token, hidden)
        mixed = jnp.einsum("bskh,bsk->bsh", results, weights)
        if c.shared_ffn:
            mixed = mixed + LlamaMlp(c, width=c.shared_ffn, name="shared")(x)
        return mixed


def _weights(config: ExpertLlamaConfig, scores: jax.Array) -> jax.Array:
    """Return the weights of the chosen experts, which are the last dim."""
    if config.gate == "softmax":
        return jax.nn.softmax(scores, axis=-1)
    gates = jax.nn.sigmoid(scores)
    return gates if scores.shape[-1] == 1 else gates / gates.sum(axis=-1, keepdims=True)


def _rows(x: jax.Array, numbers: jax.Array) -> jax.Array:
    """Return rows of each sequence by their numbers."""
    return jnp.take_along_axis(x, numbers[..., None], axis=1)


class ExpertBlock(LlamaBlock):
    """One layer: attention and experts, each behind a norm, each added to the stream."""

    def feed_forward(self) -> nn.Module:
        """The experts."""
        assert isinstance(self.config, ExpertLlamaConfig)
        return Experts(self.config, name="experts")


class ExpertLlama(Llama):
    """The decoder: tokens `[batch, seq]` to logits `[batch, seq, vocab]`, in `config.dtype`."""

    block = ExpertBlock
