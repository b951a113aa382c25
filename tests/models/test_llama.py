"""Llama against closed forms, against itself in its other form, and its parts by definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doubles.layer_stacking import stack_layers
from meshwise.models.llama import Llama, LlamaAttention, LlamaConfig, rotate
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.sizes.llama_sizes import forward_flop, llama_config
from models.closed_forms import llama_parameters
from models.counting import count, dense_flop, random_params

pytestmark = pytest.mark.usefixtures("quick_compile")

TINY = llama_config("tiny")
RNG = np.random.default_rng(0)


def abstract_params(config: LlamaConfig) -> Any:
    tokens = jax.ShapeDtypeStruct((1, 16), jnp.int32)
    return jax.eval_shape(Llama(config).init, jax.random.key(0), tokens)["params"]


def tokens_of(config: LlamaConfig, batch: int = 2) -> jax.Array:
    return jnp.asarray(RNG.integers(config.vocab_size, size=(batch, config.seq_len)), jnp.int32)


@pytest.mark.parametrize("name", llama_config.names)
def test_parameter_count_is_the_formula(name: str) -> None:
    config = llama_config(name, scan_layers=True)
    assert count(abstract_params(config)) == llama_parameters(config)


@pytest.mark.parametrize(("name", "billions"), [("8B", 8.03), ("70B", 70.6), ("405B", 405.9)])
def test_a_size_is_what_its_name_says(name: str, billions: float) -> None:
    assert llama_parameters(llama_config(name)) / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize(("scan_layers", "remat"), [(False, False), (True, False), (True, True)])
def test_flop_is_that_of_the_traced_products(scan_layers: bool, remat: bool) -> None:
    config = llama_config("tiny", num_layers=2, scan_layers=scan_layers, remat=remat)
    tokens = jax.ShapeDtypeStruct((2, config.seq_len), jnp.int32)

    def loss(params: Any, tokens: Any) -> jax.Array:
        return mean_cross_entropy(Llama(config).apply({"params": params}, tokens), tokens)

    params, forward = abstract_params(config), forward_flop(config, 2)
    assert dense_flop(jax.make_jaxpr(loss)(params, tokens).jaxpr) == forward
    gradient = dense_flop(jax.make_jaxpr(jax.grad(loss))(params, tokens).jaxpr)
    if not remat:
        assert gradient == 3 * forward
        return
    # Recomputed are the layers, but not the last product of each: nothing backward reads it.
    head = 2 * 2 * config.seq_len * config.hidden * config.vocab_size
    spared = 2 * 2 * 2 * config.seq_len * config.ffn * config.hidden
    assert gradient == 3 * forward + (forward - head) - spared


def test_scan_with_remat_equals_unrolled_with_stacked_parameters() -> None:
    config, tokens = TINY, tokens_of(TINY)
    scanned = replace(config, scan_layers=True, remat=True)
    params = random_params(abstract_params(config))

    def loss(config: LlamaConfig, params: Any) -> jax.Array:
        return mean_cross_entropy(Llama(config).apply({"params": params}, tokens), tokens)

    loss_a, grads_a = jax.jit(jax.value_and_grad(lambda p: loss(config, p)))(params)
    loss_b, grads_b = jax.jit(jax.value_and_grad(lambda p: loss(scanned, p)))(stack_layers(params))
    np.testing.assert_allclose(loss_a, loss_b, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(stack_layers(grads_a)), jax.tree.leaves(grads_b), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_rotation_keeps_lengths_and_sees_only_distances() -> None:
    query, key = RNG.normal(size=(2, 8)).astype(np.float32)
    everywhere = np.broadcast_to(query, (1, 10, 8)), np.broadcast_to(key, (1, 10, 8))
    q, k = (np.asarray(rotate(jnp.asarray(x), 100.0))[0] for x in everywhere)
    np.testing.assert_allclose(np.linalg.norm(q, axis=-1), np.linalg.norm(query), rtol=1e-5)
    scores = q @ k.T
    for distance in range(10):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-5)
    assert np.ptp(scores) > 0.1


def test_rotation_turns_each_pair_at_its_rate() -> None:
    x = RNG.normal(size=(1, 6, 2, 4))
    got = np.asarray(rotate(jnp.asarray(x, jnp.float32), 100.0))
    turned = (x[..., :2] + 1j * x[..., 2:]) * np.exp(
        1j * np.arange(6)[:, None, None] * np.array([1.0, 0.1])
    )
    np.testing.assert_allclose(got[..., :2], turned.real, atol=1e-5)
    np.testing.assert_allclose(got[..., 2:], turned.imag, atol=1e-5)


def test_grouped_queries_are_all_heads_with_repeated_keys() -> None:
    config = replace(TINY, num_heads=4, num_kv_heads=2)
    x = jnp.asarray(RNG.normal(size=(2, 8, config.hidden)), jnp.float32)
    abstract = jax.eval_shape(LlamaAttention(config).init, jax.random.key(0), x)
    params = random_params(abstract["params"])
    every = dict(params)
    for name in ("key", "value"):
        kernel = params[name]["kernel"]
        every[name] = {"kernel": jnp.repeat(kernel, 2, axis=1)}
    every["query"] = {"kernel": params["query"]["kernel"].reshape(config.hidden, 4, 1, 8)}
    every["out"] = {"kernel": params["out"]["kernel"].reshape(4, 1, 8, config.hidden)}
    full = jax.jit(LlamaAttention(replace(config, num_kv_heads=4)).apply)({"params": every}, x)
    grouped = jax.jit(LlamaAttention(config).apply)({"params": params}, x)
    np.testing.assert_allclose(grouped, full, rtol=1e-4, atol=1e-6)


def test_attention_is_causal() -> None:
    tokens = tokens_of(TINY)
    variables = {"params": random_params(abstract_params(TINY))}
    cut = TINY.seq_len // 2
    changed = tokens.at[:, cut:].set((tokens[:, cut:] + 1) % TINY.vocab_size)
    apply = jax.jit(Llama(TINY).apply)
    before, after = apply(variables, tokens), apply(variables, changed)
    np.testing.assert_array_equal(before[:, :cut], after[:, :cut])
    assert not np.allclose(before[:, cut:], after[:, cut:])


def test_mixed_precision_keeps_parameters_wide() -> None:
    config, tokens = replace(TINY, dtype="bfloat16"), tokens_of(TINY)
    variables = {"params": random_params(abstract_params(config), 0.02)}
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    narrow, wide = (jax.jit(Llama(c).apply)(variables, tokens) for c in (config, TINY))
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, atol=0.05)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_heads": 5}, "5 heads do not divide hidden size 32"),
        ({"num_kv_heads": 3}, "3 kv heads do not divide 4 heads"),
        ({"hidden": 12}, "rotary positions need an even head width, not 3"),
    ],
)
def test_what_must_divide(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        llama_config("tiny", **changes)


def test_too_long_a_sequence_is_refused() -> None:
    tokens = jnp.zeros((1, TINY.seq_len + 1), jnp.int32)
    with pytest.raises(ValueError, match="sequence of 33 tokens, but the model has 32 positions"):
        jax.eval_shape(Llama(TINY).init, jax.random.key(0), tokens)


def test_unknown_size_lists_the_sizes() -> None:
    with pytest.raises(ValueError, match="no Llama size '7B'; there are tiny, small, 8B"):
        llama_config("7B")
