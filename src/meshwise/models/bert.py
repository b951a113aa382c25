"""BERT as a masked language model, in Flax Linen, unrolled or as `nn.scan` over its layers.

Post-LN blocks, learned positions and segments, exact GELU, attention to every token that is not
padding, and the masked-LM head: dense, GELU, layer norm, the tied embedding, a bias a token.  The
loss is `losses.masked_mean_cross_entropy` with the weights of the predicted positions.

Source: Devlin et al. 2018; sizes in `models/bert_sizes.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from meshwise.models.precision import module_dtypes, wide_dtype

INIT_STDDEV = 0.02
NORM_EPS = 1e-12
NUM_SEGMENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """What a BERT is made of.

    Attributes:
        vocab_size: Number of tokens.
        seq_len: Longest sequence, the number of learned positions.
        hidden: Width of the stream; the MLP is four times as wide inside.
        num_layers: Number of blocks.
        num_heads: Attention heads; divides `hidden`.
        dropout: Rate of every dropout; 0 leaves them out.
        dtype: Of the computation; softmax and norms stay in float32, or in `param_dtype` when that
            is wider.
        param_dtype: Of the parameters.
        scan_layers: One `nn.scan` over stacked parameters in place of `num_layers` blocks.
        remat: Keep only the inputs of each block and recompute the rest in the backward pass.
    """

    vocab_size: int
    seq_len: int
    hidden: int
    num_layers: int
    num_heads: int
    dropout: float = 0.0
    dtype: str = "float32"
    param_dtype: str = "float32"
    scan_layers: bool = False
    remat: bool = False

    def __post_init__(self) -> None:
        """Check what must divide.

        Raises:
            ValueError: `num_heads` does not divide `hidden`.
        """
        if self.hidden % self.num_heads:
            raise ValueError(f"{self.num_heads} heads do not divide hidden size {self.hidden}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.num_heads


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


class Attention(nn.Module):
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


class Block(nn.Module):
    """One layer: attention and MLP, each added to the stream and then normed."""

    config: BertConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, is_token: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, None]:
        """The new stream, and None: the shape that `nn.scan` wants of its body."""
        c = self.config
        mixed = Attention(c, name="attention")(x, is_token, deterministic)
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
        length = tokens.shape[1]
        if length > c.seq_len:
            raise ValueError(
                f"sequence of {length} tokens, but the model has {c.seq_len} positions"
            )

        def embedding(name: str, size: int) -> nn.Embed:
            return nn.Embed(size, c.hidden, embedding_init=_INIT, name=name, **module_dtypes(c))

        embed = embedding("token_embedding", c.vocab_size)
        positions = self.param("position_embedding", _INIT, (c.seq_len, c.hidden), c.param_dtype)
        x = embed(tokens) + positions[:length].astype(c.dtype)
        x = x + embedding("segment_embedding", NUM_SEGMENTS)(segments)
        x = _drop(c, _norm(c, "embedding_norm", x), deterministic)
        x = self._blocks(x, is_token, deterministic)
        x = nn.gelu(_dense(c, "head", c.hidden)(x), approximate=False)
        bias = self.param("output_bias", nn.initializers.zeros, (c.vocab_size,), c.param_dtype)
        return embed.attend(_norm(c, "head_norm", x)) + bias.astype(c.dtype)

    def _blocks(self, x: jax.Array, is_token: jax.Array, deterministic: bool) -> jax.Array:
        c = self.config
        block: Any = Block
        if c.remat:
            # Inside a scan the loop itself keeps XLA from merging the recomputation away.
            block = nn.remat(Block, static_argnums=(3,), prevent_cse=not c.scan_layers)
        if c.scan_layers:
            scanned = nn.scan(
                block,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]  # typed int, takes this
                length=c.num_layers,
            )
            return scanned(c, name="blocks")(x, is_token, deterministic)[0]
        for layer in range(c.num_layers):
            x = block(c, name=f"block_{layer}")(x, is_token, deterministic)[0]
        return x
