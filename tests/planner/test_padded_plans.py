"""Plans that pad: where it pays, what the plan says of it, and that it can be replayed."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwise as mw
from meshwise.models.gpt import Gpt, GptConfig
from meshwise.models.losses import mean_cross_entropy
from meshwise.plan.plan import Plan

CLUSTER = mw.Cluster.virtual("1x p3.16xlarge")
SEQ, ROWS = 256, 8


@cache
def gpt(vocab: int) -> tuple[Any, Any, Any]:
    """A GPT of one layer whose head is most of its work: step, state, batch."""
    config = GptConfig(vocab_size=vocab, seq_len=SEQ, hidden=1024, num_layers=1, num_heads=16)
    model, optimizer = Gpt(config), optax.adam(1e-3)

    def step(state, batch):
        params, opt = state
        loss, grads = mw.value_and_grad(
            lambda p: mean_cross_entropy(model.apply(p, batch["x"]), batch["y"])
        )(params)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    tokens = jax.ShapeDtypeStruct((ROWS, SEQ), jnp.int32)
    params = jax.eval_shape(
        model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, SEQ), jnp.int32)
    )
    state = (params, jax.eval_shape(optimizer.init, params))
    return step, state, {"x": tokens, "y": tokens}


def plan_of(vocab: int, method: Any) -> Plan:
    step, state, batch = gpt(vocab)
    return mw.parallelize(step, method=method, cluster=CLUSTER).plan(state, batch)


@cache
def padded_plan() -> Plan:
    return plan_of(50257, mw.IntraOp((2, 4)))


def test_a_vocabulary_of_50257_is_padded():
    plan = padded_plan()
    (dim,) = plan.padding.dims
    assert (dim.size, dim.padded_size) == (50257, 50264)
    assert dim.where[0] == "0/0/params/token_embedding/embedding dim 0"
    assert plan.padding.unpadded_step_time_s is not None
    assert plan.step_time_s < plan.padding.unpadded_step_time_s
    assert plan.replicated.flop_share < 0.01


def test_the_head_is_split_over_the_vocabulary():
    largest = max(item.device_flop for item in padded_plan().stages[0].dense)
    head = [i for i in padded_plan().stages[0].dense if i.device_flop == largest]
    forward = next(item for item in head if len(item.results[0].dims) == 3)
    assert forward.results[0].dims[-1], "no axis splits the logits over the vocabulary"
    # An eighth of the work of all, but for the padding.
    assert largest == pytest.approx(2 * ROWS * SEQ * 1024 * 50257 / 8, rel=0.01)


def test_arguments_keep_their_shapes():
    plan = padded_plan()
    _, state, batch = gpt(50257)
    specs, _ = mw.partition_specs(plan, state, batch)
    spec = specs[0]["params"]["token_embedding"]["embedding"]
    assert len(spec) < 1 or spec[0] is None, "50257 rows cannot be split"


def test_the_plan_reads_back_and_explains_itself():
    plan = padded_plan()
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    text = again.explain()
    assert "Padded inside the step" in text
    assert "50257   50264" in text
    assert "a step (predicted)" in text


def test_the_plan_is_replayed_as_it_was_decided():
    plan = padded_plan()
    assert plan_of(50257, mw.Replay(Plan.from_json(plan.to_json()))) == plan
    with pytest.raises(mw.errors.PlanError, match="is float32.* in the plan; .*or plan again"):
        plan_of(50256, mw.Replay(plan))


def test_equal_steps_have_equal_plans():
    assert plan_of(50257, mw.IntraOp((2, 4))).to_json() == padded_plan().to_json()


@pytest.mark.parametrize("method", [mw.DataParallel(), mw.IntraOp((2, 4), objective="alpa")])
def test_methods_that_do_not_pad(method):
    assert plan_of(50257, method).padding.dims == ()


def test_what_the_devices_divide_is_not_padded():
    assert plan_of(50264, mw.IntraOp((2, 4))).padding.dims == ()
