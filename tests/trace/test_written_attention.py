"""Attention that a step writes out is found, whatever differentiates it and wherever it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import meshwise as mw
from meshwise.trace.attention.written_out import WrittenAttention, num_scores, written_attention
from meshwise.trace.layers.equations import inlined

B, S, H, D = 2, 24, 3, 8


def attention(q: Any, k: Any, v: Any) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8
    seen = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def capped(q: Any, k: Any, v: Any) -> jax.Array:
    scores = jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def without_softmax(q: Any, k: Any, v: Any) -> jax.Array:
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k)), v)


def found_in(fun: Callable[..., Any], *args: Any) -> list[WrittenAttention]:
    return list(written_attention(inlined(jax.make_jaxpr(fun)(*args)).jaxpr))


def arrays(dtype: Any, keys: int = S) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((B, n, H, D), dtype) for n in (S, keys, keys)]


def loss(*operands: Any) -> jax.Array:
    return jnp.sum(attention(*operands).astype(jnp.float32))


def in_a_loop(q: Any, k: Any, v: Any) -> jax.Array:
    return jax.lax.scan(lambda x, _: (attention(x, k, v), None), q, length=3)[0]


@pytest.mark.parametrize(
    "fun",
    [
        attention,
        jax.value_and_grad(loss),
        mw.value_and_grad(loss),
        jax.value_and_grad(jax.checkpoint(loss)),
        in_a_loop,
        jax.jit(attention),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_attention_is_found(fun: Callable[..., Any], dtype: Any) -> None:
    found = found_in(fun, *arrays(dtype))
    assert found
    for one in found:
        assert one.shape == (B, H, S, S)
        assert (one.rows_and_keys, one.features) == ((S, S), (D, D))
        assert one.query_dtype == jnp.dtype(dtype).name
        assert one.num_bytes == B * H * S * S * jnp.dtype(dtype).itemsize
        assert "(attention)" in one.where
        assert one.where in one.lines
        assert "tanh" not in one.functions


def test_rows_and_keys_are_told_apart() -> None:
    (found,) = found_in(attention, *arrays(jnp.bfloat16, keys=40))
    assert found.rows_and_keys == (S, 40)


def test_functions_of_scores_are_told() -> None:
    (found,) = found_in(capped, *arrays(jnp.float32))
    assert "tanh" in found.functions


def test_two_products_without_softmax_are_no_attention() -> None:
    assert found_in(without_softmax, *arrays(jnp.float32)) == []


@pytest.mark.parametrize(
    ("fun", "times"), [(attention, 1), (mw.value_and_grad(loss), 1), (in_a_loop, 3)]
)
def test_scores_of_long_rows_are_counted(fun: Callable[..., Any], times: int) -> None:
    flat = inlined(jax.make_jaxpr(fun)(*arrays(jnp.float32))).jaxpr
    assert num_scores(flat, S) == times * B * H * S * S
    assert num_scores(flat, S + 1) == 0


def test_equal_attention_is_counted_as_often_as_it_is_there() -> None:
    def twice(q: Any, k: Any, v: Any) -> jax.Array:
        return attention(attention(q, k, v), k, v)

    flat = inlined(jax.make_jaxpr(twice)(*arrays(jnp.float32))).jaxpr
    assert num_scores(flat, 1) == 2 * B * H * S * S


def test_scores_in_a_kernel_are_in_no_memory_of_the_step() -> None:
    def kernel(q: Any, k: Any, v: Any, out: Any) -> None:
        scores = (q[...] @ k[...].T) * (1 + pl.program_id(0))
        out[...] = jax.nn.softmax(scores, axis=-1) @ v[...]

    whole = jax.ShapeDtypeStruct((S, D), jnp.float32)
    call = pl.pallas_call(kernel, out_shape=whole, grid=(1,))

    def step(q: Any, k: Any, v: Any) -> Any:
        return jax.lax.scan(lambda x, _: (call(x, k, v), None), q, length=3)[0]

    assert num_scores(inlined(jax.make_jaxpr(step)(*[whole] * 3)).jaxpr, 1) == 0
