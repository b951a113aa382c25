"""A Llama decoder in Flax Linen, unrolled or as `nn.scan` over its layers.

Pre-norm blocks with RMSNorm, rotary positions (RoPE), grouped-query attention (GQA), a gated MLP
(SwiGLU), no biases, an output projection of its own.  Kernels keep heads as dims of their own:
queries `[hidden, kv_heads, heads a group, head_dim]`, keys and values
`[hidden, kv_heads, head_dim]`, so that splitting heads over devices needs no reshape.

Source: Touvron et al. 2023 (Llama), Grattafiori et al. 2024 (Llama 3); sizes in
`models/sizes/llama_sizes.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from meshwise.models.precision import module_dtypes, wide_dtype
from meshwise.models.transformer import SequenceConfig, check_length, run_blocks

INIT_STDDEV = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(SequenceConfig):
    """What a Llama is made of.

    Attributes:
        ffn: Width inside the MLP.
        num_kv_heads: Heads of keys and values; divides `num_heads`.
        rope_theta: Base of the rotary frequencies.
        norm_eps: Epsilon of RMSNorm.
        scan_layers: One `nn.scan` over stacked parameters in place of `num_layers` blocks.
    """

    ffn: int
    num_kv_heads: int
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    scan_layers: bool = False

    def __post_init__(self) -> None:
        """Check what must divide.

        Raises:
            ValueError: heads do not divide, or a head has an odd width.
        """
        SequenceConfig.__post_init__(self)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_kv_heads} kv heads do not divide {self.num_heads} heads")
        if self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head width, not {self.head_dim}")


def rotate(x: jax.Array, theta: float) -> jax.Array:
    """Rotate pairs of features by an angle that grows with the position.

    Feature `i` of the first half is paired with feature `i` of the second half.

    Args:
        x: `[batch, seq, ..., head_dim]`.
        theta: Pair `i` of `n` turns by `theta ** (-i / n)` a position.

    Source: Su et al. 2021 (RoFormer), eq. 34.
    """
    num_pairs = x.shape[-1] // 2
    wide = jnp.promote_types(x.dtype, jnp.float32)
    frequency = jnp.exp(jnp.arange(num_pairs, dtype=wide) * (-math.log(theta) / num_pairs))
    angle = jnp.arange(x.shape[1], dtype=wide)[:, None] * frequency
    angle = angle.reshape(x.shape[1], *(1,) * (x.ndim - 3), num_pairs)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    first, second = x[..., :num_pairs], x[..., num_pairs:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def normal(stddev: float) -> nn.initializers.Initializer:
    """Return what draws a kernel."""
    return nn.initializers.normal(stddev=stddev)


def out_stddev(config: LlamaConfig) -> float:
    """Return the deviation of residual projections, so that depth does not grow the stream."""
    return INIT_STDDEV / math.sqrt(2 * config.num_layers)


class LlamaAttention(nn.Module):
    """Causal grouped-query self-attention, `[batch, seq, hidden] -> [batch, seq, hidden]`."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Mix each position with those before it."""
        c = self.config
        groups, dim = c.num_kv_heads, c.head_dim

        def heads(name: str, *shape: int) -> jax.Array:
            return nn.DenseGeneral(
                shape, use_bias=False, kernel_init=normal(INIT_STDDEV), name=name,
                **module_dtypes(c),
            )(x)  # fmt: skip

        query = rotate(heads("query", groups, c.num_heads // groups, dim), c.rope_theta)
        key = rotate(heads("key", groups, dim), c.rope_theta)
        value = heads("value", groups, dim)
        query = query / jnp.asarray(math.sqrt(dim), query.dtype)
        scores = jnp.einsum("bqghd,bkgd->bghqk", query, key).astype(wide_dtype(c))
        position = jnp.arange(x.shape[1])
        is_visible = position[:, None] >= position[None, :]
        scores = jnp.where(is_visible, scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        mixed = jnp.einsum("bghqk,bkgd->bqghd", weights, value)
        return nn.DenseGeneral(
            c.hidden, axis=(-3, -2, -1), use_bias=False, kernel_init=normal(out_stddev(c)),
            name="out", **module_dtypes(c),
        )(mixed)  # fmt: skip


class LlamaMlp(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`."""

    config: LlamaConfig
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[batch, seq, hidden] -> [batch, seq, hidden]`."""
        c = self.config

        def dense(name: str, width: int, stddev: float) -> nn.Dense:
            return nn.Dense(
                width, use_bias=False, kernel_init=normal(stddev), name=name, **module_dtypes(c)
            )

        inner = nn.silu(dense("gate", self.width, INIT_STDDEV)(x))
        inner = inner * dense("up", self.width, INIT_STDDEV)(x)
        return dense("down", c.hidden, out_stddev(c))(inner)


def _norm(config: LlamaConfig, name: str, value: jax.Array) -> jax.Array:
    layer = nn.RMSNorm(
        epsilon=config.norm_eps, dtype=wide_dtype(config), param_dtype=config.param_dtype, name=name
    )
    return layer(value).astype(config.dtype)


class LlamaBlock(nn.Module):
    """One layer: attention and MLP, each behind a norm, each added to the stream."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """The new stream, and None: the shape that `nn.scan` wants of its body."""
        c = self.config
        x = x + self.attention()(_norm(c, "norm_1", x))
        return x + self.feed_forward()(_norm(c, "norm_2", x)), None

    def attention(self) -> nn.Module:
        """What mixes positions."""
        return LlamaAttention(self.config, name="attention")

    def feed_forward(self) -> nn.Module:
        """What follows attention."""
        return LlamaMlp(self.config, self.config.ffn, name="mlp")


class Llama(nn.Module):
    """The decoder: tokens `[batch, seq]` to logits `[batch, seq, vocab]`, in `config.dtype`."""

    config: LlamaConfig
    block: ClassVar[type[LlamaBlock]] = LlamaBlock

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits of the next token at every position.

        Args:
            tokens: Integers below `vocab_size`, `[batch, seq]` with `seq <= seq_len`.

        Raises:
            ValueError: the sequence is longer than `seq_len`.
        """
        c = self.config
        check_length(tokens, c.seq_len)
        x = nn.Embed(
            c.vocab_size, c.hidden, embedding_init=normal(INIT_STDDEV), name="token_embedding",
            **module_dtypes(c),
        )(tokens)  # fmt: skip
        x = _norm(c, "final_norm", run_blocks(self.block, c, x))
        return nn.Dense(
            c.vocab_size, use_bias=False, kernel_init=normal(INIT_STDDEV), name="output",
            **module_dtypes(c),
        )(x)  # fmt: skip
