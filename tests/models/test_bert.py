"""BERT against closed forms and against itself in its other form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from doubles.layer_stacking import stack_layers
from meshwise.models.bert import Bert, BertConfig
from meshwise.models.losses import masked_mean_cross_entropy
from meshwise.models.sizes.bert_sizes import bert_config
from models.closed_forms import bert_forward_flop, bert_parameters
from models.counting import count, dense_flop, random_params

pytestmark = pytest.mark.usefixtures("quick_compile")

TINY = bert_config("tiny")


def batch_of(config: BertConfig, size: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    shape = (size, config.seq_len)
    return {
        "tokens": rng.integers(config.vocab_size, size=shape, dtype=np.int32),
        "segments": rng.integers(2, size=shape, dtype=np.int32),
        "is_token": np.arange(config.seq_len) < rng.integers(8, config.seq_len, (size, 1)),
        "labels": rng.integers(config.vocab_size, size=shape, dtype=np.int32),
        "weights": (rng.random(shape) < 0.15).astype(np.float32),
    }


def abstract_params(config: BertConfig) -> Any:
    ids = jax.ShapeDtypeStruct((1, 16), jnp.int32)
    init = Bert(config).init
    is_token = jax.ShapeDtypeStruct((1, 16), jnp.bool_)
    return jax.eval_shape(init, jax.random.key(0), ids, ids, is_token)["params"]


def loss(config: BertConfig, params: Any, batch: Any) -> jax.Array:
    logits = Bert(config).apply(
        {"params": params}, batch["tokens"], batch["segments"], batch["is_token"]
    )
    return masked_mean_cross_entropy(logits, batch["labels"], batch["weights"])


@pytest.mark.parametrize("name", bert_config.names)
def test_parameter_count_is_the_formula(name: str) -> None:
    config = bert_config(name, scan_layers=True)
    assert count(abstract_params(config)) == bert_parameters(config)


@pytest.mark.parametrize(
    ("name", "billions"), [("base", 0.1095), ("large", 0.335), ("1.3B", 1.28), ("3.9B", 3.86)]
)
def test_a_size_is_what_its_name_says(name: str, billions: float) -> None:
    assert bert_parameters(bert_config(name)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_segments_are_looked_up_without_a_scatter() -> None:
    params, batch = random_params(abstract_params(TINY)), batch_of(TINY)
    params["segment_embedding"]["embedding"] = jnp.stack([jnp.zeros(32), jnp.arange(32.0)])
    swapped = jax.tree.map(lambda x: x, params)
    swapped["segment_embedding"]["embedding"] = params["segment_embedding"]["embedding"][::-1]
    other = batch | {"segments": 1 - batch["segments"]}
    assert loss(TINY, params, batch) == loss(TINY, swapped, other) != loss(TINY, params, other)
    backward = jax.make_jaxpr(jax.grad(lambda p: loss(TINY, p, batch)))(params)
    # Of the tokens and of the labels.
    assert str(backward).count("scatter-add[") == 2


@pytest.mark.parametrize("scan_layers", [False, True])
def test_flop_is_that_of_the_traced_products(scan_layers: bool) -> None:
    config = bert_config("tiny", scan_layers=scan_layers)
    params, batch = abstract_params(config), batch_of(config)
    forward = jax.make_jaxpr(lambda p: loss(config, p, batch))(params)
    assert dense_flop(forward.jaxpr) == bert_forward_flop(config, 2)
    gradient = jax.make_jaxpr(jax.grad(lambda p: loss(config, p, batch)))(params)
    assert dense_flop(gradient.jaxpr) == 3 * bert_forward_flop(config, 2)


def test_scan_with_remat_equals_unrolled_with_stacked_parameters() -> None:
    scanned, batch = replace(TINY, scan_layers=True, remat=True), batch_of(TINY)
    params = random_params(abstract_params(TINY))
    loss_a, grads_a = jax.jit(jax.value_and_grad(lambda p: loss(TINY, p, batch)))(params)
    stacked = stack_layers(params)
    loss_b, grads_b = jax.jit(jax.value_and_grad(lambda p: loss(scanned, p, batch)))(stacked)
    np.testing.assert_allclose(loss_a, loss_b, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(stack_layers(grads_a)), jax.tree.leaves(grads_b), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_padding_is_not_seen_and_context_is_on_both_sides() -> None:
    batch = batch_of(TINY, 1)
    inputs = (batch["segments"], batch["is_token"])
    variables = {"params": random_params(abstract_params(TINY))}
    apply = jax.jit(Bert(TINY).apply)
    length = int(batch["is_token"].sum())
    assert length < TINY.seq_len
    before = apply(variables, batch["tokens"], *inputs)
    for position, is_seen in ((length, False), (length - 1, True)):
        tokens = batch["tokens"].copy()
        tokens[:, position] = (tokens[:, position] + 1) % TINY.vocab_size
        after = apply(variables, tokens, *inputs)
        assert np.array_equal(before[:, : length - 1], after[:, : length - 1]) != is_seen


def test_dropout_follows_its_key() -> None:
    config, batch = replace(TINY, dropout=0.5, num_layers=1), batch_of(TINY)
    inputs = (batch["tokens"], batch["segments"], batch["is_token"])
    variables = {"params": random_params(abstract_params(config))}

    @jax.jit
    def logits(seed: int) -> jax.Array:
        rngs = {"dropout": jax.random.key(seed)}
        return Bert(config).apply(variables, *inputs, deterministic=False, rngs=rngs)

    np.testing.assert_array_equal(logits(0), logits(0))
    assert not np.allclose(logits(0), logits(1))


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(ValueError, match="5 heads do not divide hidden size 32"):
        bert_config("tiny", num_heads=5)
    with pytest.raises(ValueError, match="no BERT size '7B'; there are tiny, base"):
        bert_config("7B")
    ids = jnp.zeros((1, 33), jnp.int32)
    with pytest.raises(ValueError, match="sequence of 33 tokens, but the model has 32 positions"):
        jax.eval_shape(Bert(TINY).init, jax.random.key(0), ids, ids, ids == 0)
