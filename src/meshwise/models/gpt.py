"""A GPT-2-like decoder in Flax Linen, unrolled or as `nn.scan` over its layers.

Pre-LN blocks, learned positions, GELU MLP of four times the width, tied output embedding.  The
projections to queries, keys and values keep heads as a dim of their kernels
(`[hidden, heads, head_dim]`), so that splitting heads over devices needs no reshape.

Source: Radford et al. 2019 (GPT-2); sizes in `models/sizes/gpt_sizes.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from meshwise.models.precision import module_dtypes, wide_dtype
from meshwise.models.transformer import TransformerConfig, check_length, run_blocks

INIT_STDDEV = 0.02  # GPT-2


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig(TransformerConfig):
    """What a GPT is made of."""


def _normal(stddev: float) -> nn.initializers.Initializer:
    return nn.initializers.normal(stddev=stddev)


class GptAttention(nn.Module):
    """Causal self-attention, `[batch, seq, hidden] -> [batch, seq, hidden]`."""

    config: GptConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Mix each position with those before it."""
        c = self.config
        dtypes = module_dtypes(c)

        def heads(name: str) -> jax.Array:
            return nn.DenseGeneral(
                (c.num_heads, c.head_dim), kernel_init=_normal(INIT_STDDEV), name=name, **dtypes
            )(x)

        query, key, value = heads("query"), heads("key"), heads("value")
        query = query / jnp.asarray(math.sqrt(c.head_dim), query.dtype)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(wide_dtype(c))
        position = jnp.arange(x.shape[1])
        is_visible = position[:, None] >= position[None, :]
        scores = jnp.where(is_visible, scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        if c.dropout > 0.0:
            weights = nn.Dropout(c.dropout)(weights, deterministic=deterministic)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        # GPT-2: residual projections start smaller, so that depth does not grow the stream.
        init = _normal(INIT_STDDEV / math.sqrt(2 * c.num_layers))
        return nn.DenseGeneral(c.hidden, axis=(-2, -1), kernel_init=init, name="out", **dtypes)(
            mixed
        )


class GptMlp(nn.Module):
    """Two dense layers with GELU between, four times as wide inside."""

    config: GptConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[batch, seq, hidden] -> [batch, seq, hidden]`."""
        c = self.config
        dtypes = module_dtypes(c)
        init = _normal(INIT_STDDEV / math.sqrt(2 * c.num_layers))
        x = nn.Dense(4 * c.hidden, kernel_init=_normal(INIT_STDDEV), name="up", **dtypes)(x)
        x = nn.gelu(x, approximate=True)
        return nn.Dense(c.hidden, kernel_init=init, name="down", **dtypes)(x)


class GptBlock(nn.Module):
    """One layer: attention and MLP, each behind a layer norm, each added to the stream."""

    config: GptConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> tuple[jax.Array, None]:
        """The new stream, and None: the shape that `nn.scan` wants of its body."""
        c = self.config

        def norm(name: str, value: jax.Array) -> jax.Array:
            layer = nn.LayerNorm(dtype=wide_dtype(c), param_dtype=c.param_dtype, name=name)
            return layer(value).astype(c.dtype)

        def drop(value: jax.Array) -> jax.Array:
            if c.dropout == 0.0:
                return value
            return nn.Dropout(c.dropout)(value, deterministic=deterministic)

        x = x + drop(GptAttention(c, name="attention")(norm("norm_1", x), deterministic))
        x = x + drop(GptMlp(c, name="mlp")(norm("norm_2", x)))
        return x, None


class Gpt(nn.Module):
    """The decoder: tokens `[batch, seq]` to logits `[batch, seq, vocab]`, in `config.dtype`."""

    config: GptConfig

    @nn.compact
    def __call__(self, tokens: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Logits of the next token at every position.

        Args:
            tokens: Integers below `vocab_size`, `[batch, seq]` with `seq <= seq_len`.
            deterministic: No dropout; otherwise `rngs={"dropout": key}` is needed.

        Raises:
            ValueError: the sequence is longer than `seq_len`.
        """
        c = self.config
        check_length(tokens, c.seq_len)
        embed = nn.Embed(
            c.vocab_size,
            c.hidden,
            embedding_init=_normal(INIT_STDDEV),
            name="token_embedding",
            **module_dtypes(c),
        )
        positions = self.param(
            "position_embedding", _normal(INIT_STDDEV), (c.seq_len, c.hidden), c.param_dtype
        )
        x = embed(tokens) + positions[: tokens.shape[1]].astype(c.dtype)
        if c.dropout > 0.0:
            x = nn.Dropout(c.dropout)(x, deterministic=deterministic)
        x = run_blocks(GptBlock, c, x, deterministic, static_args=(0,))
        x = nn.LayerNorm(dtype=wide_dtype(c), param_dtype=c.param_dtype, name="final_norm")(x)
        return embed.attend(x.astype(c.dtype))
