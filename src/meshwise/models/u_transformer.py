"""U-Transformer in Flax Linen: a U-Net with attention and long skips, a denoiser of latents.

Way down: levels of a residual block and a transformer, each followed by a convolution that halves
the image; every result waits for the way up.  Middle: residual block, transformer, residual block.
Way up: the mirror image, where each block first joins the result that waited longest in the way
down at its size.  Transformers attend to the image, then to a context.  Residual blocks take the
time step.  The lowest level of the way down and the highest of the way up have no transformer.

Source: Ronneberger et al. 2015, Petit et al. 2021 (U-Transformer), Rombach et al. 2022; shape and
sizes as the U-Net suite of Alpa's benchmark (`models/sizes/u_transformer_sizes.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from meshwise.models.precision import module_dtypes, wide_dtype

NORM_EPS = 1e-5
LONGEST_PERIOD = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UTransformerConfig:
    """What a U-Transformer is made of.

    Attributes:
        base_channels: Channels of the highest level; each lower one has twice as many, the lowest
            as many as the one above.
        num_levels: Levels; the image is halved between them.
        image_size: Height and width of the latents.
        in_channels: Channels of the latents.
        out_channels: Channels of the result.
        num_heads: Attention heads; divides all channels.
        num_groups: Groups of a group norm in residual blocks; divides all channels.
        attention_groups: Groups of the group norm before a transformer; divides all channels.
        dtype: Dtype of the computation; softmax and norms stay in float32, or in `param_dtype`
            when that is wider.
        param_dtype: Dtype of the parameters.
    """

    base_channels: int
    num_levels: int = 4
    image_size: int = 32
    in_channels: int = 3
    out_channels: int = 4
    num_heads: int = 8
    num_groups: int = 4
    attention_groups: int = 32
    dtype: str = "float32"
    param_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Check what must divide.

        Raises:
            ValueError: heads, groups or levels do not divide.
        """
        for name in ("num_heads", "num_groups", "attention_groups"):
            if self.base_channels % getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)} does not divide {self.base_channels} channels"
                )
        if self.image_size % 2 ** (self.num_levels - 1):
            raise ValueError(
                f"an image of {self.image_size} cannot be halved {self.num_levels - 1} times"
            )

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of each level, from the highest."""
        doubled = [self.base_channels * 2**level for level in range(self.num_levels - 1)]
        return (*doubled, doubled[-1]) if doubled else (self.base_channels,)

    @property
    def context_shape(self) -> tuple[int, int]:
        """Tokens and width of the context: as the lowest level."""
        return (self.image_size >> (self.num_levels - 1)) ** 2, self.channels[-1]


def time_features(steps: jax.Array, width: int) -> jax.Array:
    """Cosines and sines of `[batch]` time steps at `width / 2` rates, `[batch, width]`.

    Source: Vaswani et al. 2017, section 3.5.
    """
    half = width // 2
    rates = jnp.exp(jnp.arange(half, dtype=steps.dtype) * (-math.log(LONGEST_PERIOD) / half))
    angle = steps[:, None] * rates
    return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)


def _conv(config: UTransformerConfig, name: str, channels: int, size: int, stride: int = 1):
    return nn.Conv(
        channels, (size, size), (stride, stride), padding=size // 2, name=name,
        **module_dtypes(config),
    )  # fmt: skip


def _group_norm(
    config: UTransformerConfig, name: str, value: jax.Array, num_groups: int
) -> jax.Array:
    layer = nn.GroupNorm(
        num_groups=num_groups, epsilon=NORM_EPS, dtype=wide_dtype(config),
        param_dtype=config.param_dtype, name=name,
    )  # fmt: skip
    return layer(value).astype(config.dtype)


def _layer_norm(config: UTransformerConfig, name: str, value: jax.Array) -> jax.Array:
    layer = nn.LayerNorm(
        epsilon=NORM_EPS, dtype=wide_dtype(config), param_dtype=config.param_dtype, name=name
    )
    return layer(value).astype(config.dtype)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with the time step between, added to their input."""

    config: UTransformerConfig
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        """Images `[batch, height, width, any]` and time `[batch, any]` to `[..., channels]`."""
        c = self.config
        y = nn.silu(_group_norm(c, "norm_1", x, c.num_groups))
        y = _conv(c, "conv_1", self.channels, 3)(y)
        shift = nn.Dense(self.channels, name="time", **module_dtypes(c))(nn.silu(time))
        y = nn.silu(_group_norm(c, "norm_2", y + shift[:, None, None, :], c.num_groups))
        y = _conv(c, "conv_2", self.channels, 3)(y)
        if x.shape[-1] != self.channels:
            x = _conv(c, "shortcut", self.channels, 1)(x)
        return x + y


class CrossAttention(nn.Module):
    """Attention of `[batch, tokens, channels]` to a context `[batch, others, any]`."""

    config: UTransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array, context: jax.Array) -> jax.Array:
        """What each token takes from the context."""
        c, width = self.config, x.shape[-1] // self.config.num_heads

        def heads(name: str, value: jax.Array) -> jax.Array:
            return nn.DenseGeneral(
                (c.num_heads, width), use_bias=False, name=name, **module_dtypes(c)
            )(value)

        query, key, value = heads("query", x), heads("key", context), heads("value", context)
        query = query / jnp.asarray(math.sqrt(width), query.dtype)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(wide_dtype(c))
        weights = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return nn.DenseGeneral(x.shape[-1], axis=(-2, -1), name="out", **module_dtypes(c))(mixed)


class Transformer(nn.Module):
    """Attention to the image and to the context, and a gated MLP, on the points of an image."""

    config: UTransformerConfig

    @nn.compact
    def __call__(self, image: jax.Array, context: jax.Array) -> jax.Array:
        """`[batch, height, width, channels] -> [batch, height, width, channels]`."""
        c, channels = self.config, image.shape[-1]

        def dense(name: str, width: int) -> nn.Dense:
            return nn.Dense(width, name=name, **module_dtypes(c))

        x = dense("in", channels)(_group_norm(c, "norm", image, c.attention_groups))
        x = x.reshape(x.shape[0], -1, channels)
        normed = _layer_norm(c, "norm_1", x)
        x = x + CrossAttention(c, name="to_image")(normed, normed)
        x = x + CrossAttention(c, name="to_context")(_layer_norm(c, "norm_2", x), context)
        normed = _layer_norm(c, "norm_3", x)
        inner = dense("up", 4 * channels)(normed) * nn.gelu(dense("gate", 4 * channels)(normed))
        x = x + dense("down", channels)(inner)
        return image + dense("out", channels)(x.reshape(image.shape))


def _double(image: jax.Array) -> jax.Array:
    """Return an image in which each point became four."""
    return jnp.repeat(jnp.repeat(image, 2, axis=1), 2, axis=2)


class UTransformer(nn.Module):
    """Noisy latents to the noise in them, both `[batch, height, width, channels]`."""

    config: UTransformerConfig

    @nn.compact
    def __call__(self, latents: jax.Array, steps: jax.Array, context: jax.Array) -> jax.Array:
        """The noise, `[batch, height, width, out_channels]`, in `config.dtype`.

        Args:
            latents: `[batch, image_size, image_size, in_channels]`.
            steps: Time step of each image, `[batch]`, floats.
            context: `[batch, tokens, width]`, for instance of `config.context_shape`.
        """
        c = self.config
        width = 4 * c.base_channels
        time = time_features(steps, c.base_channels).astype(c.dtype)
        time = nn.Dense(width, name="time_1", **module_dtypes(c))(time)
        time = nn.Dense(width, name="time_2", **module_dtypes(c))(nn.silu(time))
        context = context.astype(c.dtype)
        x = _conv(c, "conv_in", c.base_channels, 3)(latents)
        lowest = c.num_levels - 1
        skips = [x]
        for level, channels in enumerate(c.channels):
            x = ResidualBlock(c, channels, name=f"down_{level}")(x, time)
            if level < lowest:
                x = Transformer(c, name=f"down_{level}_attention")(x, context)
                skips.append(x)
                x = _conv(c, f"down_{level}_halve", channels, 3, 2)(x)
            else:
                skips.append(x)
        x = ResidualBlock(c, c.channels[-1], name="middle_1")(x, time)
        x = Transformer(c, name="middle_attention")(x, context)
        x = ResidualBlock(c, c.channels[-1], name="middle_2")(x, time)
        for level in reversed(range(c.num_levels)):
            channels = c.channels[level]
            x = jnp.concatenate([x, skips.pop()], axis=-1)
            x = ResidualBlock(c, channels, name=f"up_{level}")(x, time)
            if level > 0:
                x = Transformer(c, name=f"up_{level}_attention")(x, context)
                x = _conv(c, f"up_{level}_double", channels, 3)(_double(x))
            else:
                x = jnp.concatenate([x, skips.pop()], axis=-1)
                x = ResidualBlock(c, channels, name="up_0_last")(x, time)
        x = nn.silu(_group_norm(c, "norm_out", x, c.num_groups))
        return _conv(c, "conv_out", c.out_channels, 3)(x)
