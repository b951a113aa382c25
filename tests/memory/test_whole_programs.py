"""Whole steps whose memory is predicted for GPUs and TPUs: rules that only meet there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import meshwise as mw
from meshwise.memory.gpu.target import GPU
from meshwise.memory.live import MostLive
from meshwise.memory.local_program import InstructionKind, Instructions, LocalInstruction
from meshwise.memory.local_program import LocalValue as Value
from meshwise.memory.targets import MEMORY_MODELS, memory_model_of
from meshwise.memory.tpu.target import TPU

V5E, H100 = "1x tpu-v5e", "1x dgx-h100"


def peak_of(step: Callable[..., Any], cluster: str, *shapes: tuple[int, ...]) -> int:
    """The predicted peak of a step with data parallelism."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    planned = mw.parallelize(step, method=mw.DataParallel(), cluster=mw.Cluster.virtual(cluster))
    return planned.plan(*args).peak_bytes


def descent(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    def step(weights: jax.Array, batch: jax.Array) -> jax.Array:
        return weights - jax.grad(loss)(weights, batch)

    return step


@pytest.mark.parametrize("cluster", [V5E, H100])
def test_a_convolution_without_dims_of_space_has_a_prediction(cluster: str) -> None:
    def loss(weights: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.sum(lax.conv_general_dilated(batch, weights, (), []) ** 2)

    assert peak_of(descent(loss), cluster, (16, 3), (32, 3)) > 4 * (16 * 3 + 32 * 3 // 8)


@pytest.mark.parametrize(("width", "filled"), [(4, 8), (7, 8), (64, 8), (65, 16), (224, 32)])
def test_narrow_images_are_spread_too(width: int, filled: int) -> None:
    # Rows of the kernel, eight columns beside a batch of 16 in the lanes, features by fours.
    assert TPU.spread_elements((16, 3, width, width), 3) == width * filled * 3 * 128 * 4


def test_a_weight_that_passes_a_barrier_in_a_loop_is_rounded_once() -> None:
    def step(weights: jax.Array, batch: jax.Array, *, is_kept: bool) -> jax.Array:
        def hidden(w: jax.Array, x: jax.Array) -> jax.Array:
            return jnp.tanh(jnp.tanh(x @ w) @ w)

        taken = hidden if is_kept else jax.checkpoint(hidden)

        def add(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.grad(lambda w: jnp.sum(taken(w, x) ** 2))(weights), None

        return weights - lax.scan(add, jnp.zeros_like(weights), batch)[0]

    shapes = (512, 512), (4, 32, 512)
    kept = peak_of(lambda w, x: step(w, x, is_kept=True), V5E, *shapes)
    again = peak_of(lambda w, x: step(w, x, is_kept=False), V5E, *shapes)
    # A copy in bfloat16 would be half a MiB more.
    assert abs(again - kept) < 2**18


def pooled(relu: Callable[[jax.Array], jax.Array]) -> Callable[..., Any]:
    def loss(weights: jax.Array, batch: jax.Array) -> jax.Array:
        image = relu(batch * weights)
        windows = (1, 2, 2, 1)
        small = lax.reduce_window(image, -jnp.inf, lax.max, windows, windows, "VALID")
        return jnp.sum(small**2)

    return descent(loss)


def test_zeros_beside_a_pooled_comparison_stay() -> None:
    shapes = (1, 1, 1, 8), (64, 32, 32, 8)
    image = 4 * 8 * 32 * 32 * 8
    more = peak_of(pooled(lambda x: jnp.maximum(x, 0)), H100, *shapes) - peak_of(
        pooled(lambda x: jnp.where(x > 0, x, 0)), H100, *shapes
    )
    assert more > 0.9 * image


def instructions(*, is_sent: bool) -> tuple[Instructions, list[Value]]:
    kind = InstructionKind.OPAQUE
    values = [Value(kind, (), 8, 0, 0), Value(kind, (0,), 8, 1, 1, is_copy=is_sent)]
    steps = tuple(LocalInstruction(i, v.inputs, (), (i,), ()) for i, v in enumerate(values))
    found = Instructions(steps=steps, results=(1,), over_input=frozenset(), num_values=2)
    return found, values


@pytest.mark.parametrize(("is_sent", "count"), [(True, 2), (False, 1)])
def test_only_collectives_make_a_second_order_of_gpus_possible(is_sent: bool, count: int) -> None:
    assert len(GPU.orders(*instructions(is_sent=is_sent))) == count


def test_an_order_that_needs_much_more_is_not_likely() -> None:
    def top(num_bytes: int) -> MostLive:
        return MostLive(
            instruction=0, num_bytes=num_bytes, buffers=(), lifetimes=(), own_bytes=num_bytes
        )

    near, far, depth_first = top(109), top(111), top(100)
    assert tuple(GPU.likely((near, depth_first))) == (near, depth_first)
    assert tuple(GPU.likely((far, depth_first))) == (depth_first,)
    # One that needs less may be what was taken.
    assert tuple(GPU.likely((depth_first, far))) == (depth_first, far)
    assert tuple(GPU.likely((far,))) == (far,)


@pytest.mark.parametrize(
    ("name", "model"),
    [("TPU v5", "tpu-v5p"), ("TPU v5p", "tpu-v5p"), ("TPU v5 lite", "tpu"), ("TPU v5e", "tpu")],
)
def test_names_of_tpus_as_drivers_and_the_catalog_have_them(name: str, model: str) -> None:
    device = replace(mw.Cluster.virtual(V5E).host.device, name=name)
    assert memory_model_of(device) is MEMORY_MODELS[model]
