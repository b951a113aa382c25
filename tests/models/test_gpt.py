"""GPT against closed forms and against itself in its other form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doubles.layer_stacking import stack_layers, unstack_layers
from meshwise.models.gpt import Gpt, GptConfig
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.sizes.gpt_sizes import (
    forward_flop,
    gpt_config,
    num_parameters,
)
from models.closed_forms import training_flop
from models.counting import count, dense_flop

pytestmark = pytest.mark.usefixtures("quick_compile")

TINY = gpt_config("tiny")


def abstract_params(config: GptConfig) -> Any:
    tokens = jax.ShapeDtypeStruct((1, config.seq_len), jnp.int32)
    init = Gpt(config).init
    return jax.eval_shape(init, jax.random.key(0), tokens)["params"]


def tokens_of(config: GptConfig, batch: int = 2) -> jax.Array:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.integers(config.vocab_size, size=(batch, config.seq_len)), jnp.int32)


@pytest.mark.parametrize("name", gpt_config.names)
def test_parameter_count_is_the_formula(name: str) -> None:
    config = gpt_config(name, scan_layers=True)
    assert count(abstract_params(config)) == num_parameters(config)


@pytest.mark.parametrize("name", ["tiny", "small", "125M"])
def test_unrolled_form_has_as_many_parameters(name: str) -> None:
    config = gpt_config(name)
    assert count(abstract_params(config)) == num_parameters(config)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("125M", 0.125), ("350M", 0.355), ("1.3B", 1.3), ("2.6B", 2.65), ("6.7B", 6.65),
     ("15B", 15.4), ("39B", 39.1), ("76B", 76.2)],
)  # fmt: skip
def test_a_size_is_what_its_name_says(name: str, billions: float) -> None:
    assert num_parameters(gpt_config(name)) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("name", ["39B", "76B"])
def test_big_sizes_trace_without_memory(name: str) -> None:
    config = gpt_config(name, scan_layers=True, dtype="bfloat16")
    params = abstract_params(config)
    tokens = jax.ShapeDtypeStruct((4, config.seq_len), jnp.int32)
    logits = jax.eval_shape(Gpt(config).apply, {"params": params}, tokens)
    assert logits.shape == (4, 1024, 51200)
    assert logits.dtype == jnp.bfloat16


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("remat", [False, True])
def test_flop_is_that_of_the_traced_products(scan_layers: bool, remat: bool) -> None:
    config = gpt_config("mini", num_layers=3, scan_layers=scan_layers, remat=remat)
    model, batch = Gpt(config), 2
    params = abstract_params(config)
    tokens = jax.ShapeDtypeStruct((batch, config.seq_len), jnp.int32)

    def loss(params: Any, tokens: Any) -> jax.Array:
        return mean_cross_entropy(model.apply({"params": params}, tokens), tokens)

    assert dense_flop(jax.make_jaxpr(loss)(params, tokens).jaxpr) == forward_flop(config, batch)
    gradient = jax.make_jaxpr(jax.grad(loss))(params, tokens)
    # The last product of a block is not recomputed: nothing in the backward pass reads it.
    spared = 3 * 8 * batch * config.seq_len * config.hidden**2 if remat else 0
    assert dense_flop(gradient.jaxpr) == training_flop(config, batch) - spared


def test_training_flop_is_alpas_formula() -> None:
    config = gpt_config("2.6B")
    b, s, h, layers, v = 32, 1024, 2560, 32, 51200
    for remat, factor in ((False, 72), (True, 96)):
        alpa = factor * b * s * h * h * layers * (1 + s / (6 * h)) + 6 * b * s * h * v
        assert training_flop(replace(config, remat=remat), b) == pytest.approx(alpa, rel=1e-12)


@pytest.mark.parametrize("remat", [False, True])
def test_scan_equals_unrolled_with_stacked_parameters(remat: bool) -> None:
    config = gpt_config("tiny", num_layers=3, remat=remat)
    scanned = replace(config, scan_layers=True)
    tokens = tokens_of(config)
    params = jax.jit(Gpt(config).init)(jax.random.key(1), tokens)["params"]

    def loss(config: GptConfig, params: Any) -> jax.Array:
        return mean_cross_entropy(Gpt(config).apply({"params": params}, tokens), tokens)

    loss_a, grads_a = jax.jit(jax.value_and_grad(lambda p: loss(config, p)))(params)
    loss_b, grads_b = jax.jit(jax.value_and_grad(lambda p: loss(scanned, p)))(stack_layers(params))
    assert jax.tree.structure(grads_b) == jax.tree.structure(abstract_params(scanned))
    np.testing.assert_allclose(loss_a, loss_b, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(stack_layers(grads_a)), jax.tree.leaves(grads_b), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_unstack_inverts_stack() -> None:
    params = jax.jit(Gpt(TINY).init)(jax.random.key(0), tokens_of(TINY))["params"]
    back = unstack_layers(stack_layers(params))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, dict(params), back))


def test_attention_is_causal() -> None:
    tokens = tokens_of(TINY)
    variables = jax.jit(Gpt(TINY).init)(jax.random.key(0), tokens)
    cut = TINY.seq_len // 2
    changed = tokens.at[:, cut:].set((tokens[:, cut:] + 1) % TINY.vocab_size)
    before = Gpt(TINY).apply(variables, tokens)
    after = Gpt(TINY).apply(variables, changed)
    np.testing.assert_array_equal(before[:, :cut], after[:, :cut])
    assert not np.allclose(before[:, cut:], after[:, cut:])


def test_dropout_follows_its_key() -> None:
    config = replace(TINY, dropout=0.5)
    tokens = tokens_of(config)
    variables = jax.jit(Gpt(config).init)(jax.random.key(0), tokens)

    def logits(seed: int) -> jax.Array:
        rngs = {"dropout": jax.random.key(seed)}
        return Gpt(config).apply(variables, tokens, deterministic=False, rngs=rngs)

    np.testing.assert_array_equal(logits(0), logits(0))
    assert not np.allclose(logits(0), logits(1))
    assert not np.allclose(logits(0), Gpt(config).apply(variables, tokens))


def test_mixed_precision_keeps_parameters_wide() -> None:
    config = replace(TINY, dtype="bfloat16")
    variables = jax.jit(Gpt(config).init)(jax.random.key(0), tokens_of(config))
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    narrow = Gpt(config).apply(variables, tokens_of(config))
    wide = Gpt(TINY).apply(variables, tokens_of(config))
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, atol=0.05)


def test_too_long_a_sequence_is_refused() -> None:
    tokens = jnp.zeros((1, TINY.seq_len + 1), jnp.int32)
    with pytest.raises(ValueError, match="sequence of 33 tokens, but the model has 32 positions"):
        jax.jit(Gpt(TINY).init)(jax.random.key(0), tokens)


def test_heads_must_divide() -> None:
    with pytest.raises(ValueError, match="5 heads do not divide hidden size 32"):
        gpt_config("tiny", num_heads=5)


def test_unknown_size_lists_the_sizes() -> None:
    with pytest.raises(ValueError, match="no GPT size '7B'; there are tiny, mini"):
        gpt_config("7B")
