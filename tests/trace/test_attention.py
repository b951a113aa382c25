"""Attention that is found in steps, and what it computes there, on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwise as mw
from meshwise.models.sizes.bert_sizes import bert_config
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.sizes.llama_sizes import llama_config
from meshwise.models.steps import model_step
from meshwise.rules.table import primitive_rule
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.evaluate import run_program
from meshwise.trace.program import Program
from meshwise.trace.step import StepSignature, open_step, trace_step

ROWS, KEYS, HEADS, GROUPS, FEATURES = 8, 8, 4, 2, 4
SIGNATURE = StepSignature(batch_argnums=(), batch_dims=0, donate_argnums=())
Attention = Callable[..., Any]
by_jax = jax.nn.dot_product_attention


def _arrays(heads: int = GROUPS) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    sizes = ((2, ROWS, HEADS, FEATURES), *[(2, KEYS, heads, FEATURES)] * 2)
    return tuple(jnp.asarray(rng.normal(size=size), jnp.float32) for size in sizes)


def _step(attention: Attention, grad: Any = mw.value_and_grad) -> Attention:
    def step(weights: Any, others: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.sum(jnp.sin(attention(*weights, *others).astype(jnp.float32)))

        return grad(loss)(weights)

    return step


def _joined(step: Attention, *args: Any) -> Program | None:
    found = with_attention(open_step(step, args, {}, SIGNATURE))
    return None if found is None else trace_step(found).program


def _kinds(program: Program) -> list[str]:
    inner = [kind for node in program.nodes for body in node.bodies for kind in _kinds(body)]
    return [*inner, *(n.name for n in program.nodes if n.name.startswith("attention"))]


def _by_hand(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(FEATURES)
    scores = jnp.where(jnp.tril(jnp.ones((ROWS, KEYS), bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def _as_matrices(q: Any, k: Any, v: Any) -> Any:
    scores = q[0, :, 0] @ k[0, :, 0].T
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return (weights / jnp.sum(weights, axis=-1, keepdims=True)) @ v[0, :, 0]


def _scanned(q: Any, k: Any, v: Any) -> Any:
    def body(carry: Any, _: None) -> Any:
        return by_jax(carry, k, v, is_causal=True), None

    return jax.lax.scan(body, q, None, length=3)[0]


_MASK = jnp.asarray(np.random.default_rng(1).random((2, 1, ROWS, KEYS)) > 0.3)
_BIAS = jnp.asarray(np.random.default_rng(2).normal(size=(1, HEADS, ROWS, KEYS)), jnp.float32)
_LENGTHS = jnp.asarray([3, 7], jnp.int32)

# Attention, its operands that are not differentiated, and how many of the operator's own operands
# follow from these: masks of positions are made of the positions (those of a window of vectors).
FOUND: dict[str, tuple[Attention, tuple[Any, ...], int]] = {
    "no mask": (by_jax, (), 0),
    "causal": (partial(by_jax, is_causal=True), (), 0),
    "a window": (partial(by_jax, is_causal=True, local_window_size=(3, 0)), (), 4),
    "a mask": (lambda q, k, v, m: by_jax(q, k, v, mask=m), (_MASK,), 1),
    "a masked row": (
        lambda q, k, v, m: by_jax(q, k, v, mask=m, is_causal=True),
        (jnp.zeros((2, 1, 1, KEYS), bool),),
        1,
    ),
    "a bias": (lambda q, k, v, b: by_jax(q, k, v, bias=b), (_BIAS,), 1),
    "lengths": (lambda q, k, v, n: by_jax(q, k, v, key_value_seq_lengths=n), (_LENGTHS,), 1),
    "by hand": (_by_hand, (), 0),
    "matrices": (_as_matrices, (), 0),
    "rematerialised": (jax.checkpoint(partial(by_jax, is_causal=True)), (), 0),
    "scanned": (_scanned, (), 0),
}


@pytest.mark.parametrize("name", FOUND)
def test_attention_is_found_and_computes_the_same(name: str) -> None:
    attention, others, num_others = FOUND[name]
    weights = _arrays(HEADS if name == "by hand" else GROUPS)
    step = _step(attention)
    program = _joined(step, weights, others)
    assert program is not None
    kinds = _kinds(program)
    assert {"attention", "attention_gradient"} == set(kinds)
    nodes = [node for node in program.nodes if node.name == "attention"]
    others_of = [program.avals[i].shape for node in nodes for i in node.inputs[3:]]
    arrays = [shape for shape in others_of if np.prod(shape, dtype=int) > 1]
    assert len(arrays) == num_others
    want = jax.tree.leaves(jax.jit(step)(weights, others))
    got = run_program(program, jax.tree.leaves((weights, others)))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


# Of those above, the ones that a causal mask hides, and nothing else.
CAUSAL = {"causal", "by hand", "rematerialised", "scanned"}


@pytest.mark.parametrize("name", FOUND)
def test_only_a_causal_mask_lets_devices_take_halves(name: str) -> None:
    attention, others, _ = FOUND[name]
    program = _joined(_step(attention), _arrays(HEADS if name == "by hand" else GROUPS), others)
    assert program is not None
    nodes = [*program.nodes, *(n for node in program.nodes for b in node.bodies for n in b.nodes)]
    for node in nodes:
        if node.name.startswith("attention"):
            ring = primitive_rule(node.equation).rule(node.equation).ring
            assert ring is not None
            assert bool(ring.halved_operands) == (name in CAUSAL)


def _masked(hidden: Any, inner: float = 0.0) -> Attention:
    """Attention in which `hidden(row, key)` is masked, and what `inner` hides before."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        row, key = jnp.arange(ROWS)[:, None], jnp.arange(KEYS)[None, :]
        if inner:
            scores = jnp.where(key > 1, scores, inner)
        scores = jnp.where(hidden(row, key), -1e9, scores)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)

    return attention


@pytest.mark.parametrize(
    ("attention", "is_halved"),
    [
        (_masked(lambda row, key: row < key), True),
        (_masked(lambda row, key: key > row), True),
        (_masked(lambda row, key: row + 1 <= key), True),
        (_masked(lambda row, key: ~(key <= row)), True),
        (_masked(lambda row, key: row.astype("float32") < key.astype("float32")), True),
        # Such types round the numbers of rows of a long sequence, or wrap around.
        (_masked(lambda row, key: row.astype("bfloat16") < key.astype("bfloat16")), False),
        (_masked(lambda row, key: row.astype("int8") < key.astype("int8")), False),
        (_masked(lambda row, key: row.astype("uint32") - 1 < key.astype("uint32") - 1), False),
        (_masked(lambda row, key: key - row > 0), False),  # right, but not found
        (_masked(lambda row, key: row <= key), False),  # row 0 sees nothing
        (_masked(lambda row, key: row + 1 < key), False),  # a key behind is seen
        (_masked(lambda row, key: row > key), False),
        (_masked(lambda row, key: row < key, inner=-1e9), False),  # of some rows all is hidden
    ],
)
def test_masks_are_causal_if_each_row_sees_itself_and_all_before(
    attention: Attention, is_halved: bool
) -> None:
    program = _joined(_step(attention), _arrays(HEADS), ())
    assert program is not None
    (node,) = [node for node in program.nodes if node.name == "attention"]
    ring = primitive_rule(node.equation).rule(node.equation).ring
    assert ring is not None
    assert bool(ring.halved_operands) == is_halved


def test_low_precision_is_as_low_and_no_lower() -> None:
    weights = tuple(x.astype(jnp.bfloat16) for x in _arrays())
    step = _step(partial(by_jax, is_causal=True))
    program = _joined(step, weights, ())
    assert program is not None
    want = jax.tree.leaves(jax.jit(step)(weights, ()))
    for one, other in zip(run_program(program, list(weights)), want, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            one.astype(jnp.float32), other.astype(jnp.float32), rtol=3e-2, atol=3e-2
        )


def test_attention_without_a_derivative_is_found() -> None:
    program = _joined(partial(by_jax, is_causal=True), *_arrays())
    assert program is not None
    assert _kinds(program) == ["attention"]


@pytest.mark.parametrize(
    "config",
    [
        gpt_config("350M", num_layers=1, dtype="bfloat16"),
        gpt_config("350M", num_layers=2, scan_layers=True, remat=True),
        llama_config("8B", num_layers=1, dtype="bfloat16"),
        bert_config("base", num_layers=1),
    ],
    ids=["gpt", "scanned and rematerialised gpt", "llama", "bert"],
)
def test_attention_of_models_is_found(config: Any) -> None:
    step, state, batch = model_step(config, 8, optax.sgd(1e-3)).abstract
    program = _joined(step, state, batch)
    assert program is not None
    assert {"attention", "attention_gradient"} == set(_kinds(program))


def _kept(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v) + jnp.sum(weights) / 8


def _dropped(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=-1)
    is_kept = jax.random.bernoulli(jax.random.key(0), 0.9, weights.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", weights * is_kept, v)


def _sigmoid(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.sigmoid(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _one_row(q: Any, k: Any, v: Any) -> Any:
    """Scores of one row of queries, which a bias makes different for each row."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q[:, :1], k) - 0.1 * jnp.arange(ROWS)[:, None]
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores * jnp.arange(KEYS), axis=-1), v)


def _one_head(q: Any, k: Any, v: Any) -> Any:
    """Scores of one head, which a slope makes different for each head."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q[:, :, :1], k[:, :, :1])
    scores = scores * jnp.arange(1.0, HEADS + 1)[:, None, None]
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def _far_from_products(q: Any, k: Any, v: Any) -> Any:
    """A polynomial of scores that would be long if written out: 3 ** 40 terms."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.1
    for _ in range(40):
        scores = scores * (1.1 - 0.1 * scores * scores)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def _far_away(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    for _ in range(600):
        scores = scores * 1.001 + 0.001
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def _centred(q: Any, k: Any, v: Any) -> Any:
    """Scores that each key has a part in: no block of keys gives its own."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = scores - jnp.mean(scores, axis=-1, keepdims=True)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def _less_than_largest(q: Any, k: Any, v: Any) -> Any:
    """Weights of the keys alone whose scores are near the largest."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    is_near = scores > jnp.max(scores, axis=-1, keepdims=True) - 1
    weights = jax.nn.softmax(jnp.where(is_near, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


@pytest.mark.parametrize(
    "attention",
    [
        *(_kept, _dropped, _sigmoid, _one_row, _one_head, _far_from_products, _far_away),
        *(_centred, _less_than_largest),
    ],
)
def test_what_is_more_or_less_than_attention_stays(attention: Attention) -> None:
    assert _joined(_step(attention), _arrays(HEADS), ()) is None


def test_a_bias_that_is_learned_stays() -> None:
    learned = _step(lambda q, k, v, b: by_jax(q, k, v, bias=b))
    assert _joined(learned, (*_arrays(), _BIAS), ()) is None


def test_a_loss_that_is_differentiated_stays() -> None:
    def slope(q: Any, k: Any, v: Any) -> Any:
        return mw.grad(lambda q: jnp.sum(by_jax(q, k, v) ** 2))(q)

    assert _joined(_step(slope), _arrays(), ()) is None


def test_what_jax_has_differentiated_stays() -> None:
    assert _joined(_step(by_jax, jax.value_and_grad), _arrays(), ()) is None
