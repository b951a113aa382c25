"""DeepSeek-V3's shape: experts with places, the published plan, exchanges that cost less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluation.deepseek.model import PlacedExperts
from evaluation.deepseek.published import SHARES, Published, exchange_s, with_exchanges
from evaluation.steps import BFLOAT16

from meshwise.cluster.spec import ClusterSpec
from meshwise.models.expert_llama import Experts
from meshwise.models.sizes.expert_llama_sizes import expert_llama_config

TINY = replace(expert_llama_config("tiny"), gate="sigmoid")


def applied(module: Any, params: Any, x: Any) -> Any:
    return module.apply(params, x)


def test_experts_with_a_place_for_every_token_are_those_without_places() -> None:
    """A token that goes to all experts finds a place in each."""
    config = replace(TINY, experts_per_token=TINY.num_experts)
    x = jax.random.normal(jax.random.key(1), (3, config.seq_len, config.hidden))
    free, placed = Experts(config), PlacedExperts(config)
    params = free.init(jax.random.key(0), x)

    def gradients(module):
        return jax.grad(lambda p, x: jnp.sum(applied(module, p, x) ** 3), argnums=(0, 1))(params, x)

    found, wanted = (applied(module, params, x) for module in (placed, free))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-8)
    for one, other in zip(*map(jax.tree.leaves, map(gradients, (free, placed))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-9)


def test_a_token_without_a_place_is_left_out() -> None:
    """Equal tokens go to the same two experts, which have places for the first of them."""
    config = TINY
    x = jnp.ones((1, config.seq_len, config.hidden))
    placed, free = PlacedExperts(config), Experts(config)
    params = free.init(jax.random.key(0), x)
    places = config.seq_len * config.experts_per_token // config.num_experts
    found, all_placed = (applied(module, params, x) for module in (placed, free))
    np.testing.assert_allclose(found[:, :places], all_placed[:, :places], rtol=1e-5, atol=1e-8)
    assert float(jnp.abs(found[:, places:] - all_placed[:, places:]).min()) > 0


@pytest.fixture(scope="module")
def plan():
    # Wide enough that exchanges are not all of its time.
    config = replace(TINY, num_layers=4, ffn=65536, **BFLOAT16)
    published = Published(config=config, batch=32, stages=2, expert_devices=8)
    _, found = next(published.plans(ClusterSpec.virtual("2x dgx-h100")))
    return found


def test_the_published_plan_splits_rows_and_experts_over_all_devices_of_a_stage(plan) -> None:
    assert (plan.schedule, plan.num_meshes, len(plan.stages)) == ("dualpipe-v", 2, 4)
    assert {stage.mesh.sizes for stage in plan.stages} == {(8,)}
    large = [c for c in plan.collectives if c.kind == "all-to-all" and c.count == 4]
    # Tokens go to their experts and back, in both passes of each layer.
    assert len(large) >= 4 * 4


def test_exchanges_are_what_a_step_takes_less(plan) -> None:
    steps = [with_exchanges(plan, share) for share in SHARES]
    assert steps[0] == pytest.approx(plan.step_time_s, rel=1e-9)
    assert steps[0] > steps[1] > steps[2] > 0
    assert steps[0] - steps[2] >= 0.99 * plan.num_microbatches * max(exchange_s(plan))


def test_exchanges_of_others_than_experts_stay(plan) -> None:
    others = tuple(replace(item, where="dot_general at layers.py:1") for item in plan.collectives)
    assert any(exchange_s(plan))
    assert not any(exchange_s(replace(plan, collectives=others)))
