"""The GShard transformer against closed forms, its gating against a loop over tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.models.losses import mean_cross_entropy
from meshwise.models.moe import Experts, Moe, MoeConfig, load_balance, top2_gating
from meshwise.models.sizes.moe_sizes import forward_flop, moe_config
from models.closed_forms import moe_parameters
from models.counting import count, dense_flop, random_params

pytestmark = pytest.mark.usefixtures("quick_compile")

TINY = moe_config("tiny")
RNG = np.random.default_rng(0)


def abstract_params(config: MoeConfig) -> Any:
    tokens = jax.ShapeDtypeStruct((config.group_size, 8), jnp.int32)
    return jax.eval_shape(Moe(config).init, jax.random.key(0), tokens)["params"]


@pytest.mark.parametrize("name", ["tiny", "380M", "10B"])
def test_parameter_count_is_the_formula(name: str) -> None:
    assert count(abstract_params(moe_config(name))) == moe_parameters(moe_config(name))


@pytest.mark.parametrize(
    ("name", "billions"),
    [("380M", 0.38), ("1.3B", 1.35), ("2.4B", 2.4), ("10B", 10.2), ("27B", 27.0), ("70B", 70.4)],
)
def test_a_size_is_what_its_name_says(name: str, billions: float) -> None:
    assert moe_parameters(moe_config(name)) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("capacity_factor", [1.0, 2.0])
def test_flop_is_that_of_the_traced_products(capacity_factor: float) -> None:
    config = replace(TINY, capacity_factor=capacity_factor)
    tokens = jax.ShapeDtypeStruct((2, config.seq_len), jnp.int32)

    def loss(params: Any, tokens: Any) -> jax.Array:
        logits, balance = Moe(config).apply({"params": params}, tokens)
        return mean_cross_entropy(logits, tokens) + 0.01 * balance

    params = abstract_params(config)
    forward = forward_flop(config, 2)
    assert dense_flop(jax.make_jaxpr(loss)(params, tokens).jaxpr) == forward
    backward = dense_flop(jax.make_jaxpr(jax.grad(loss))(params, tokens).jaxpr) - forward
    # The dispatch mask has no gradient.
    config_tokens = 2 * config.seq_len
    mask = 2 * config_tokens * config.num_experts * config.capacity * config.hidden
    assert backward == 2 * forward - mask


def places(gates: np.ndarray[Any, Any], capacity: int) -> np.ndarray[Any, Any]:
    """GShard's algorithm 1 as it stands there: a loop over tokens, first choices first."""
    groups, tokens, experts = gates.shape
    combine = np.zeros((groups, tokens, experts, capacity))
    for g in range(groups):
        used = [0] * experts
        order = np.argsort(-gates[g], axis=-1, kind="stable")
        for choice in range(2):
            for s in range(tokens):
                e = order[s, choice]
                if used[e] < capacity:
                    best = gates[g, s, order[s, :2]].sum()
                    combine[g, s, e, used[e]] = gates[g, s, e] / best
                used[e] += 1
    return combine


@pytest.mark.parametrize("capacity", [1, 3, 20])
def test_gating_is_the_loop_over_tokens(capacity: int) -> None:
    gates = np.asarray(jax.nn.softmax(2 * RNG.normal(size=(3, 10, 4)), axis=-1))
    combine, first, placed = jax.jit(top2_gating, static_argnums=1)(gates, capacity)
    want = places(gates, capacity)
    np.testing.assert_allclose(combine, want, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.argmax(first, -1), np.argmax(gates, -1))
    assert int(placed.sum()) == int((want > 0).sum())
    if capacity == 20:
        np.testing.assert_allclose(combine.sum((-1, -2)), 1.0, rtol=1e-5)


def test_balancing_loss_is_one_where_experts_are_equally_busy() -> None:
    first = jnp.tile(jnp.eye(4), (2, 3, 1))
    even = jnp.full((2, 12, 4), 0.25)
    skewed = jax.nn.one_hot(jnp.zeros((2, 12), jnp.int32), 4)
    for balance in ("group", "batch"):
        np.testing.assert_allclose(load_balance(even, first, balance), 1.0, rtol=1e-6)
        np.testing.assert_allclose(load_balance(skewed, skewed, balance), 4.0, rtol=1e-6)


def test_balance_over_groups_is_not_that_over_the_batch() -> None:
    # Each group busies an expert of its own: balanced over the batch, not over a group.
    own = jax.nn.one_hot(jnp.arange(4)[:, None] * jnp.ones((1, 6), jnp.int32), 4)
    np.testing.assert_allclose(load_balance(own, own, "batch"), 1.0, rtol=1e-6)
    np.testing.assert_allclose(load_balance(own, own, "group"), 4.0, rtol=1e-6)


def test_with_room_for_all_experts_are_a_weighted_sum() -> None:
    config = replace(TINY, capacity_factor=float(TINY.num_experts))
    x = jnp.asarray(RNG.normal(size=(2, 16, config.hidden)), jnp.float32)
    variables = random_params(jax.eval_shape(Experts(config).init, jax.random.key(0), x))
    got, _ = jax.jit(Experts(config).apply)(variables, x)
    p = jax.tree.map(np.asarray, variables["params"])
    flat = np.asarray(x).reshape(-1, config.hidden)
    gates = np.asarray(jax.nn.softmax(flat @ p["gate"], axis=-1))
    for token, gate, out in zip(flat, gates, np.asarray(got).reshape(flat.shape), strict=True):
        two = np.argsort(-gate)[:2]
        outs = [np.maximum(token @ p["up"][e], 0) @ p["down"][e] for e in two]
        want = sum(gate[e] * o for e, o in zip(two, outs, strict=True)) / gate[two].sum()
        np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_heads": 5}, "5 heads do not divide hidden size 32"),
        ({"num_experts": 1}, "two experts a token need at least 2 experts, not 1"),
        ({"num_experts": 64}, "groups of 16 tokens leave no place in 64 experts"),
    ],
)
def test_what_is_wrong_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        moe_config("tiny", **changes)


def test_groups_must_divide_the_tokens() -> None:
    tokens = jnp.zeros((3, 8), jnp.int32)
    with pytest.raises(ValueError, match="groups of 16 tokens do not divide 3 x 8 tokens"):
        jax.eval_shape(Moe(TINY).init, jax.random.key(0), tokens)


def test_unknown_size_lists_the_sizes() -> None:
    with pytest.raises(ValueError, match="no MoE size '7B'; there are tiny, small, 380M"):
        moe_config("7B")
