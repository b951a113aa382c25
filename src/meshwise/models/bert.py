"""BERT as a masked language model, in Flax Linen, unrolled or as `nn.scan` over its layers.

Post-LN blocks, learned positions and segments, exact GELU, attention to every token that is not
padding, and the masked-LM head: dense, GELU, layer norm, the tied embedding, a bias a token.  The
loss is `losses.masked_mean_cross_entropy` with the weights of the predicted positions.

Source: Devlin et al. 2018; sizes in `models/sizes/bert_sizes.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from meshwise.models.precision import module_dtypes, wide_dtype
from meshwise.models.transformer import TransformerConfig, check_length, run_blocks

INIT_STDDEV = 0.02
NORM_EPS = 1e-12
NUM_SEGMENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig(TransformerConfig):
    """What a BERT is made of."""


_INIT = nn.initializers.normal(stddev=INIT_STDDEV)


def _norm(config: BertConfig, name: str, value: jax.Array) -> jax.Array:
    layer = nn.LayerNorm(
        epsilon=NORM_EPS, dtype=wide_dtype(config), param_dtype=config.param_dtype, name=name
    )
    return layer(value).astype(config.dtype)


def _drop(config: BertConfig, value: jax.Array, deterministic: bool) -> jax.Array:
    if config.dropout == 0.0:
        return value
    return nn.Dropout(config.dropout)(value, deterministic=deterministic)


def _dense(config: BertConfig, name: str, width: int) -> nn.Dense:
    return nn.Dense(width, kernel_init=_INIT, name=name, **module_dtypes(config))


class BertAttention(nn.Module):
    """Self-attention in both directions, `[batch, seq, hidden] -> [batch, seq, hidden]`."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array, is_token: jax.Array, deterministic: bool) -> jax.Array:
        """Mix each position with all that are no padding (`is_token`, `[batch, seq]`)."""
        c = self.config

        def heads(name: str) -> jax.Array:
            return nn.DenseGeneral(
                (c.num_heads, c.head_dim), kernel_init=_INIT, name=name, **module_dtypes(c)
            )(x)

        query, key, value = heads("query"), heads("key"), heads("value")
        query = query / jnp.asarray(math.sqrt(c.head_dim), query.dtype)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(wide_dtype(c))
        scores = jnp.where(is_token[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
        weights = _drop(c, jax.nn.softmax(scores, axis=-1).astype(c.dtype), deterministic)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return nn.DenseGeneral(
            c.hidden, axis=(-2, -1), kernel_init=_INIT, name="out", **module_dtypes(c)
        )(mixed)


class BertBlock(nn.Module):
    """One layer: attention and MLP, each added to the stream and then normed."""

    config: BertConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, is_token: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, None]:
        """The new stream, and None: the shape that `nn.scan` wants of its body."""
        c = self.config
        mixed = BertAttention(c, name="attention")(x, is_token, deterministic)
        x = _norm(c, "norm_1", x + _drop(c, mixed, deterministic))
        inner = nn.gelu(_dense(c, "up", 4 * c.hidden)(x), approximate=False)
        out = _dense(c, "down", c.hidden)(inner)
        return _norm(c, "norm_2", x + _drop(c, out, deterministic)), None


class Bert(nn.Module):
    """The masked language model: tokens `[batch, seq]` to logits `[batch, seq, vocab]`."""

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        segments: jax.Array,
        is_token: jax.Array,
        *,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits of the token at every position, in `config.dtype`.

        Args:
            tokens: Integers below `vocab_size`, `[batch, seq]` with `seq <= seq_len`.
            segments: 0 or 1, `[batch, seq]`: first or second sentence.
            is_token: False where there is padding, `[batch, seq]`.
            deterministic: No dropout; otherwise `rngs={"dropout": key}` is needed.

        Raises:
            ValueError: the sequence is longer than `seq_len`.
        """
        c = self.config
        check_length(tokens, c.seq_len)

        def embedding(name: str, size: int) -> nn.Embed:
            return nn.Embed(size, c.hidden, embedding_init=_INIT, name=name, **module_dtypes(c))

        embed = embedding("token_embedding", c.vocab_size)
        positions = self.param("position_embedding", _INIT, (c.seq_len, c.hidden), c.param_dtype)
        x = embed(tokens) + positions[: tokens.shape[1]].astype(c.dtype)
        # A choice of two rows: the gradient of a look-up is a scatter, whose additions to the same
        # two rows run one after another on a GPU (docs/measurements/gpu.md).
        first, second = embedding("segment_embedding", NUM_SEGMENTS).embedding.astype(c.dtype)
        x = x + jnp.where(segments[..., None] == 0, first, second)
        x = _drop(c, _norm(c, "embedding_norm", x), deterministic)
        x = run_blocks(BertBlock, c, x, is_token, deterministic, static_args=(1,))
        x = nn.gelu(_dense(c, "head", c.hidden)(x), approximate=False)
        bias = self.param("output_bias", nn.initializers.zeros, (c.vocab_size,), c.param_dtype)
        return embed.attend(_norm(c, "head_norm", x)) + bias.astype(c.dtype)
