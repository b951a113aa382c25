"""Wide-ResNet with bottleneck blocks and batch norm, in Flax Linen.

A stem (7x7 convolution and max-pool), four groups of bottleneck blocks that halve the image and
double the channels, an average over the image, a dense layer.  Running statistics are a
collection of their own, `batch_stats`:
`model.apply({"params": p, "batch_stats": s}, x, train=True, mutable=["batch_stats"])`.

Source: He et al. 2015, Zagoruyko and Komodakis 2016; widths as Alpa's benchmark (the width factor
widens the 3x3 convolution only), sizes in `models/sizes/wide_resnet_sizes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from meshwise.models.precision import module_dtypes, wide_dtype

MOMENTUM = 0.9
NORM_EPS = 1e-5
EXPANSION = 4

# Bottleneck blocks of each group.  Source: He et al. 2015, table 1.
BLOCKS: dict[int, tuple[int, ...]] = {
    14: (1, 1, 1, 1),  # ours, for tests
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WideResNetConfig:
    """What a Wide-ResNet is made of.

    Attributes:
        num_layers: One of `BLOCKS`.
        base_channels: Channels of the stem and of the first group.
        width_factor: How much wider the 3x3 convolution of a block is than its 1x1 input.
        num_classes: Classes.
        image_size: Height and width of an image.
        dtype: Dtype of the computation; statistics and norms stay in float32, or in
            `param_dtype` when that is wider.
        param_dtype: Dtype of the parameters.
        remat: Keep only the inputs of each block and recompute the rest in the backward pass.
    """

    num_layers: int
    base_channels: int
    width_factor: int
    num_classes: int
    image_size: int
    dtype: str = "float32"
    param_dtype: str = "float32"
    remat: bool = False

    def __post_init__(self) -> None:
        """Check the depth.

        Raises:
            ValueError: there is no such depth.
        """
        if self.num_layers not in BLOCKS:
            depths = ", ".join(map(str, BLOCKS))
            raise ValueError(f"no Wide-ResNet of {self.num_layers} layers; there are {depths}")


def _norm(config: WideResNetConfig, train: bool, name: str, **more: Any) -> nn.BatchNorm:
    return nn.BatchNorm(
        use_running_average=not train,
        momentum=MOMENTUM,
        epsilon=NORM_EPS,
        dtype=wide_dtype(config),
        param_dtype=config.param_dtype,
        # The running averages start in float32, or else in the dtype of the parameters.
        force_float32_reductions=wide_dtype(config) != config.param_dtype,
        name=name,
        **more,
    )


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, added to their input.

    Attributes:
        config: The configuration of the model.
        channels: Channels inside; the result has `EXPANSION` times as many.
        stride: Stride of the 3x3 convolution.
        train: Norm by the batch, not by running averages.
    """

    config: WideResNetConfig
    channels: int
    stride: int
    train: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[batch, height, width, channels] -> [batch, height / stride, ..., 4 channels]`."""
        c = self.config

        def layer(name: str, value: jax.Array, channels: int, size: int, **more: Any) -> jax.Array:
            stride = more.pop("stride", 1)
            value = nn.Conv(
                channels, (size, size), (stride, stride), use_bias=False, name=f"conv_{name}",
                **module_dtypes(c),
            )(value)  # fmt: skip
            return _norm(c, self.train, f"norm_{name}", **more)(value).astype(c.dtype)

        y = nn.relu(layer("1", x, self.channels, 1))
        y = nn.relu(layer("2", y, self.channels * c.width_factor, 3, stride=self.stride))
        # A new block adds nothing: its last scale starts at zero (Goyal et al. 2017).
        y = layer("3", y, EXPANSION * self.channels, 1, scale_init=nn.initializers.zeros)
        if x.shape != y.shape:
            x = layer("shortcut", x, EXPANSION * self.channels, 1, stride=self.stride)
        return nn.relu(x + y)


class WideResNet(nn.Module):
    """Images `[batch, height, width, 3]` to logits `[batch, classes]`, in `config.dtype`."""

    config: WideResNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Logits of each image.

        Args:
            images: Any floats; computed in `config.dtype`.
            train: Norm by the batch and move the running averages (`mutable=["batch_stats"]`).
        """
        c = self.config
        x = nn.Conv(
            c.base_channels, (7, 7), (2, 2), padding=3, use_bias=False, name="conv_stem",
            **module_dtypes(c),
        )(images)  # fmt: skip
        x = nn.relu(_norm(c, train, "norm_stem")(x).astype(c.dtype))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        block: Any = nn.remat(Bottleneck) if c.remat else Bottleneck
        for group, count in enumerate(BLOCKS[c.num_layers]):
            for number in range(count):
                stride = 2 if group > 0 and number == 0 else 1
                channels = c.base_channels * 2**group
                x = block(c, channels, stride, train, name=f"block_{group}_{number}")(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(c.num_classes, name="output", **module_dtypes(c))(x)
