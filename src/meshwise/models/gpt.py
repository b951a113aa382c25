"""A GPT-2-like decoder in Flax Linen, unrolled or as `nn.scan` over its layers.

Pre-LN blocks, learned positions, GELU MLP of four times the width, tied output embedding.  The
projections to queries, keys and values keep heads as a dim of their kernels
(`[hidden, heads, head_dim]`), so that splitting heads over devices needs no reshape.

Source: Radford et al. 2019 (GPT-2); sizes in `models/gpt_sizes.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

INIT_STDDEV = 0.02  # GPT-2


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """What a GPT is made of.

    Attributes:
        vocab_size: Number of tokens.
        seq_len: Longest sequence, the number of learned positions.
        hidden: Width of the residual stream.
        num_layers: Number of blocks.
        num_heads: Attention heads; divides `hidden`.
        dropout: Rate of every dropout; 0 leaves them out.
        dtype: Of the computation, `float32` or `bfloat16`; softmax and layer norms stay in
            float32, or in `param_dtype` when that is wider.
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


def _wide(config: GptConfig) -> jnp.dtype:
    """The dtype of softmax and layer norms: at least float32."""
    return jnp.promote_types(jnp.promote_types(config.dtype, config.param_dtype), jnp.float32)


def _normal(stddev: float) -> nn.initializers.Initializer:
    return nn.initializers.normal(stddev=stddev)


class Attention(nn.Module):
    """Causal self-attention, `[batch, seq, hidden] -> [batch, seq, hidden]`."""

    config: GptConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Mix each position with those before it."""
        c = self.config
        dtypes: dict[str, Any] = {"dtype": c.dtype, "param_dtype": c.param_dtype}

        def heads(name: str) -> jax.Array:
            return nn.DenseGeneral(
                (c.num_heads, c.head_dim), kernel_init=_normal(INIT_STDDEV), name=name, **dtypes
            )(x)

        query, key, value = heads("query"), heads("key"), heads("value")
        query = query / jnp.asarray(math.sqrt(c.head_dim), query.dtype)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(_wide(c))
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


class Mlp(nn.Module):
    """Two dense layers with GELU between, four times as wide inside."""

    config: GptConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[batch, seq, hidden] -> [batch, seq, hidden]`."""
        c = self.config
        dtypes: dict[str, Any] = {"dtype": c.dtype, "param_dtype": c.param_dtype}
        init = _normal(INIT_STDDEV / math.sqrt(2 * c.num_layers))
        x = nn.Dense(4 * c.hidden, kernel_init=_normal(INIT_STDDEV), name="up", **dtypes)(x)
        x = nn.gelu(x, approximate=True)
        return nn.Dense(c.hidden, kernel_init=init, name="down", **dtypes)(x)


class Block(nn.Module):
    """One layer: attention and MLP, each behind a layer norm, each added to the stream."""

    config: GptConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> tuple[jax.Array, None]:
        """The new stream, and None: the shape that `nn.scan` wants of its body."""
        c = self.config

        def norm(name: str, value: jax.Array) -> jax.Array:
            layer = nn.LayerNorm(dtype=_wide(c), param_dtype=c.param_dtype, name=name)
            return layer(value).astype(c.dtype)

        def drop(value: jax.Array) -> jax.Array:
            if c.dropout == 0.0:
                return value
            return nn.Dropout(c.dropout)(value, deterministic=deterministic)

        x = x + drop(Attention(c, name="attention")(norm("norm_1", x), deterministic))
        x = x + drop(Mlp(c, name="mlp")(norm("norm_2", x)))
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
        length = tokens.shape[1]
        if length > c.seq_len:
            raise ValueError(
                f"sequence of {length} tokens, but the model has {c.seq_len} positions"
            )
        embed = nn.Embed(
            c.vocab_size,
            c.hidden,
            embedding_init=_normal(INIT_STDDEV),
            dtype=c.dtype,
            param_dtype=c.param_dtype,
            name="token_embedding",
        )
        positions = self.param(
            "position_embedding", _normal(INIT_STDDEV), (c.seq_len, c.hidden), c.param_dtype
        )
        x = embed(tokens) + positions[:length].astype(c.dtype)
        if c.dropout > 0.0:
            x = nn.Dropout(c.dropout)(x, deterministic=deterministic)
        x = self._blocks(x, deterministic)
        x = nn.LayerNorm(dtype=_wide(c), param_dtype=c.param_dtype, name="final_norm")(x)
        return embed.attend(x.astype(c.dtype))

    def _blocks(self, x: jax.Array, deterministic: bool) -> jax.Array:
        c = self.config
        block: Any = Block
        if c.remat:
            # Inside a scan the loop itself keeps XLA from merging the recomputation away.
            block = nn.remat(Block, static_argnums=(2,), prevent_cse=not c.scan_layers)
        if c.scan_layers:
            scanned = nn.scan(
                block,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]  # typed int, takes this
                length=c.num_layers,
            )
            return scanned(c, name="blocks")(x, deterministic)[0]
        for layer in range(c.num_layers):
            x = block(c, name=f"block_{layer}")(x, deterministic)[0]
        return x
