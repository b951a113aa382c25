"""Images: transformers and convolutions, with Flax."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, integers, trained, weight

CLASSES, WIDTH = 8, 16
IMAGES = calls(lambda seed: {"x": floats(seed, ROWS, 8, 8, 3), "y": integers(seed, CLASSES, ROWS)})


def vision_transformer() -> Problem:
    """Vision transformer (ViT) of Flax NNX: split and merged, attention with dropout"""

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(
                num_heads=2,
                in_features=WIDTH,
                dropout_rate=0.1,
                deterministic=False,
                decode=False,
                rngs=rngs,
            )
            self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
            self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(x)))

    class Transformer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.patches = nnx.Conv(3, WIDTH, (4, 4), strides=(4, 4), rngs=rngs)
            self.positions = nnx.Param(jnp.zeros((1, 4, WIDTH)))
            self.block = Block(rngs)
            self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

        def __call__(self, images: jax.Array) -> jax.Array:
            x = self.patches(images).reshape(images.shape[0], 4, WIDTH)
            return self.head(self.block(x + self.positions[...]).mean(1))

    graph, params, others = nnx.split(Transformer(nnx.Rngs(0)), nnx.Param, ...)

    def step(state: Any, batch: Any) -> Any:
        params, others, opt = state

        def loss_fn(params: Any, others: Any) -> Any:
            model = nnx.merge(graph, params, others)
            loss = optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"])
            # The counts of the streams of random numbers, which dropout advances.
            return loss.mean(), nnx.split(model, nnx.Param, ...)[2]

        (loss, others), grads = mw.value_and_grad(loss_fn, has_aux=True)(params, others)
        updates, opt = ADAM.update(grads, opt, params)
        return (optax.apply_updates(params, updates), others, opt), loss

    return Problem(step=step, state=(params, others, ADAM.init(params)), calls=IMAGES)


def u_net() -> Problem:
    """U-Net of Flax Linen: group norm, strides, transposed convolutions, skips"""

    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            high = nn.silu(nn.GroupNorm(2)(nn.Conv(8, (3, 3))(x)))
            low = nn.silu(nn.GroupNorm(2)(nn.Conv(16, (3, 3), strides=2)(high)))
            low = nn.silu(nn.Conv(16, (3, 3))(low))
            up = nn.ConvTranspose(8, (2, 2), strides=(2, 2))(low)
            return nn.Conv(3, (3, 3))(jnp.concatenate([up, high], -1))

    model = UNet()

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((model.apply(params, batch["x"]) - jnp.roll(batch["x"], 1, 1)) ** 2)

    params = model.init(jax.random.key(0), IMAGES[0][0]["x"])
    return trained(loss_fn, params, IMAGES, optax.sgd(0.1, momentum=0.9))


def radiance_field() -> Problem:
    """NeRF: encoded positions along rays, volume rendering by `cumprod`"""
    samples, octaves = 8, 4

    def encode(points: jax.Array) -> jax.Array:
        turned = (points[..., None] * 2.0 ** jnp.arange(octaves)).reshape(*points.shape[:-1], -1)
        return jnp.concatenate([jnp.sin(turned), jnp.cos(turned)], -1)

    def render(p: Any, ray: Any) -> jax.Array:
        depths = jnp.linspace(0.5, 2.0, samples)
        points = ray["origin"] + depths[:, None] * ray["direction"]
        out = jax.nn.relu(encode(points) @ p["first"]) @ p["second"]
        opacity = 1 - jnp.exp(-jax.nn.softplus(out[:, 3]) * (depths[1] - depths[0]))
        clear = jnp.cumprod(jnp.concatenate([jnp.ones(1), 1 - opacity[:-1] + 1e-6]))
        return jnp.sum((opacity * clear)[:, None] * jax.nn.sigmoid(out[:, :3]), axis=0)

    def loss_fn(params: Any, rays: Any) -> jax.Array:
        colors = jax.vmap(lambda ray: render(params, ray))(rays)
        return jnp.mean((colors - rays["color"]) ** 2)

    params = {"first": weight(0, 6 * octaves, 16), "second": weight(1, 16, 4)}
    rays = calls(
        lambda seed: {
            name: floats(seed + i, ROWS, 3)
            for i, name in enumerate(("origin", "direction", "color"))
        }
    )
    return trained(loss_fn, params, rays)


def cellular_automaton() -> Problem:
    """Neural cellular automaton: a `scan` of depthwise convolutions, rematerialised"""
    channels = 8

    def loss_fn(params: Any, batch: Any) -> jax.Array:
        grid = jnp.pad(batch["x"], ((0, 0), (0, 0), (0, 0), (0, channels - 3)))

        @jax.checkpoint
        def again(grid: jax.Array, _: Any) -> Any:
            seen = jax.lax.conv_general_dilated(
                grid,
                params["look"],
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=channels,
            )
            return grid + jax.nn.relu(seen @ params["up"]) @ params["down"], None

        grid, _ = jax.lax.scan(again, grid, None, length=3)
        return jnp.mean((grid[..., :3] - jnp.roll(batch["x"], 1, 2)) ** 2)

    params = {
        "look": 0.3 * weight(0, 3, 3, 1, 2 * channels),
        "up": weight(1, 2 * channels, WIDTH),
        "down": 0.1 * weight(2, WIDTH, channels),
    }
    return trained(loss_fn, params, IMAGES)
