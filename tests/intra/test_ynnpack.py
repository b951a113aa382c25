"""What XLA:CPU makes of small programs is what the memory model says: calls, buffers, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.intra.values import FUSIBLE, INPUT, OPAQUE, REDUCE, Values
from meshwise.intra.ynnpack import ynnpack_calls
from oracle.parallel import CLUSTER


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def attention(scale: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of each head over itself, with a mask; `[batch, seq, heads, dim]`."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", x, x * scale)
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
    return scale, jnp.einsum("bhqk,bkhd->bqhd", weights, x)


def rotated(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Halves of rows take turns, twice read."""
    first, second = jnp.split(x @ weight, 2, axis=-1)
    turned = jnp.concatenate((first * 2 - second, second * 2 + first), axis=-1)
    return weight, (turned @ weight) + jnp.swapaxes(turned, 0, 1).T[: x.shape[0]] @ weight


def tied(table: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An embedding that also makes the logits."""

    def loss(t: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(jnp.einsum("bd,vd->bv", jnp.tanh(t[words]), t)))

    value, gradient = jax.value_and_grad(loss)(table)
    return table - gradient, value


def narrow(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two products of one activation."""
    h = jnp.tanh(x @ weight)
    return weight, (h @ weight) * jax.nn.relu(h @ weight.T)


def normalised(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows by their root mean square, read by three products."""
    size = jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
    y = x * size
    return weights, jnp.tanh(y @ weights[0]) * (y @ weights[1]) + y @ weights[2]


def perceptron(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The values between the products lie where the result will be."""
    h = jnp.tanh(x @ weight)
    return weight, jnp.tanh(jnp.tanh(h @ weight) @ weight) @ weight


def pooled(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of the largest of overlapping windows with edges, images of 9 by 9."""

    def loss(x: jax.Array) -> jax.Array:
        y = jnp.tanh(x)
        most = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        return jnp.mean(jnp.square(most))

    return weight, jax.grad(loss)(x)


@pytest.mark.parametrize(
    ("step", "args"),
    [
        pytest.param(attention, (spec(), spec(64, 64, 8, 16)), id="one call from 4096 rows on"),
        pytest.param(attention, (spec(), spec(16, 64, 8, 16)), id="apart below"),
        pytest.param(attention, (spec(), spec(8, 128, 8, 16)), id="one row of the batch a device"),
        pytest.param(normalised, (spec(3, 64, 64), spec(65536, 64)), id="norm of many rows"),
        pytest.param(normalised, (spec(3, 64, 64), spec(8192, 64)), id="norm of few rows"),
        pytest.param(rotated, (spec(128, 128), spec(2048, 128)), id="concatenation"),
        pytest.param(tied, (spec(512, 64), spec(512, dtype=jnp.int32)), id="scatter into product"),
        pytest.param(perceptron, (spec(128, 128), spec(4096, 128)), id="beside the result"),
        pytest.param(pooled, (spec(), spec(64, 9, 9, 32)), id="windows with edges"),
        pytest.param(
            narrow,
            (spec(128, 128, dtype=jnp.bfloat16), spec(2048, 128, dtype=jnp.bfloat16)),
            id="bfloat16",
        ),
    ],
)
def test_peak_of_a_small_program_is_that_of_xla(
    step: Callable[..., Any], args: tuple[Any, ...], quick_compile: None
) -> None:
    parallel = mw.parallelize(step, method=mw.DataParallel(), cluster=CLUSTER)
    measured = parallel.measured_peak_bytes(*args)
    predicted = parallel.plan(*args).peak_bytes
    assert predicted == pytest.approx(measured, rel=0.01)


def softmax(num_rows: int) -> Values:
    """A softmax of rows of 8 float32, and a product of it."""
    wide, narrow = 32 * num_rows, 4 * num_rows
    values = Values(itemsizes=(4,))
    values.add(INPUT, (), wide, 0, 0)
    values.add(REDUCE, (0,), narrow, 0, 0)
    values.spreads.add(values.add(FUSIBLE, (1,), narrow, 0, 0))
    values.ynnpack.add(values.add(FUSIBLE, (0, 2), wide, 0, 0, is_absorbed=True))
    values.ynnpack.add(values.add(FUSIBLE, (3,), wide, 0, 0, is_absorbed=True, is_expensive=True))
    values.add(REDUCE, (4,), narrow, 0, 0)
    values.spreads.add(values.add(FUSIBLE, (5,), narrow, 0, 0))
    values.ynnpack.add(values.add(FUSIBLE, (4, 6), wide, 0, 0, is_expensive=True))
    values.divisors[7] = 6
    values.products.add(values.add(OPAQUE, (7,), narrow, 0, 0))
    values.outputs.append(8)
    return values


def users_of(values: Values) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in values.kind]
    for v, inputs in enumerate(values.inputs):
        for u in inputs:
            users[u].append(v)
    return users


@pytest.mark.parametrize(("num_rows", "inside"), [(4096, range(1, 8)), (4095, range(1, 4))])
def test_a_softmax_and_its_product_are_one_call_from_4096_rows_on(
    num_rows: int, inside: range
) -> None:
    values = softmax(num_rows)
    assert ynnpack_calls(values, users_of(values)).inside == frozenset(inside)


def test_the_exponents_of_scores_that_several_read_are_one_call_with_their_product() -> None:
    # As in a backward pass that computes the weights of attention again.
    wide, narrow = 32 * 4096, 4 * 4096
    values = Values(itemsizes=(4,))
    values.add(INPUT, (), wide, 0, 0)
    values.products.add(values.add(OPAQUE, (0,), wide, 0, 0))
    values.add(REDUCE, (1,), narrow, 0, 0)
    values.spreads.add(values.add(FUSIBLE, (2,), narrow, 0, 0))
    values.ynnpack.add(values.add(FUSIBLE, (1, 3), wide, 0, 0, is_absorbed=True))
    values.ynnpack.add(values.add(FUSIBLE, (4,), wide, 0, 0, is_absorbed=True, is_expensive=True))
    values.outputs.append(5)
    calls = ynnpack_calls(values, users_of(values))
    assert calls.inside == frozenset(range(1, 5))
    assert calls.kind[5] == REDUCE


@pytest.mark.parametrize(("leaves", "inside"), [(1, ()), (3, (1, 2)), (4, (1, 2, 3))])
def test_what_leaves_the_program_ends_a_call(leaves: int, inside: tuple[int, ...]) -> None:
    values = softmax(8)
    values.outputs.append(leaves)
    assert ynnpack_calls(values, users_of(values)).inside == frozenset(inside)


def test_a_result_is_not_inside_of_a_call() -> None:
    values = softmax(4096)
    values.outputs.append(7)
    assert ynnpack_calls(values, users_of(values)).inside == frozenset(range(1, 7))
