"""Plans that people found by hand are found where they are right, and each test says why.

Planning only: real sizes as shapes, real machines as descriptions.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwise as mw
from meshwise.cluster.spec import ClusterSpec
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.sizes.moe_sizes import moe_config
from meshwise.models.sizes.wide_resnet_sizes import wide_resnet_config
from meshwise.models.steps import model_step
from meshwise.planner.one_mesh import make_plan
from meshwise.request.plan_request import PlanRequest
from meshwise.trace.step import StepSignature, open_step, trace_step

ONE_HOST = ClusterSpec.virtual("1x p3.16xlarge")
TWO_HOSTS = ClusterSpec.virtual("2x p3.8xlarge")
MB = 10**6


def plan_of(step: Any, *specs: Any, cluster: ClusterSpec = ONE_HOST) -> mw.Plan:
    return mw.parallelize(step, method=mw.IntraOp((8,)), cluster=cluster).plan(*specs)


def layout_of(plan: mw.Plan, ending: str) -> tuple[tuple[int, ...], ...]:
    """Which axes split each dim of the one argument whose name ends so."""
    (position,) = [i for i, a in enumerate(plan.stages[0].arguments) if a.name.endswith(ending)]
    return plan.decision.inputs[position].dims


def large(plan: mw.Plan, at_least: int = 8 * MB) -> Counter[tuple[str, int]]:
    """How often each (kind, bytes) of the large collectives happens in a step."""
    found: Counter[tuple[str, int]] = Counter()
    for c in plan.collectives:
        if c.num_bytes >= at_least:
            found[c.kind, c.num_bytes] += c.count
    return found


def test_experts_are_placed_and_tokens_travel():
    """Expert parallelism: an all-to-all before and after the experts, forward and backward.

    The experts of one layer of the 2.4B model have 16 x 2 x 1024 x 8192 elements, 1.07 GB: to
    reduce their gradients costs 1.9 GB over each link.  What the gates send to them is twice the
    tokens, 134 MB, of which a device gives away an eighth of seven eighths, 15 MB, four times.  So
    the kernels are split over the experts and never move, and the tokens go where they are used.
    """
    config = moe_config("2.4B", num_layers=2)
    plan = plan_of(*model_step(config, 16, optax.sgd(1e-3)).abstract)
    for kernel in ("up", "down"):
        assert layout_of(plan, f"experts/{kernel}") == ((0,), (), ())
    sent = 2 * 16 * config.seq_len * config.hidden * 4
    assert large(plan)["all-to-all", sent] == 4
    expert_bytes = 16 * config.hidden * config.ffn * 4
    assert all(num_bytes < expert_bytes / 2 for _, num_bytes in large(plan))


@pytest.mark.parametrize("cluster", [ONE_HOST, TWO_HOSTS], ids=["one host", "two hosts"])
def test_a_large_vocabulary_is_split_and_its_softmax_with_it(cluster):
    """Vocabulary parallelism: the logits never move, only one number a token does.

    1,024 tokens of width 1,024 against 51,200 classes: the kernel and its gradient have 210 MB, and
    so have the logits, while maximum, sum and chosen logit of all tokens have 4 KB each.  With the
    classes split, products, softmax and update run on an eighth each, and those three (and
    their like backward) are all that is reduced: five small all-reduces, of which each costs its
    latency.  Tokens are too few to be split: that would reduce 210 MB of gradients.
    """

    def step(kernel: Any, batch: Any) -> Any:
        def loss(kernel: Any) -> Any:
            return mean_cross_entropy(batch["x"] @ kernel, batch["y"])

        value, grad = mw.value_and_grad(loss)(kernel)
        return kernel - 0.1 * grad, value

    kernel = jax.ShapeDtypeStruct((1024, 51200), jnp.float32)
    batch = {
        "x": jax.ShapeDtypeStruct((8, 128, 1024), jnp.float32),
        "y": jax.ShapeDtypeStruct((8, 128), jnp.int32),
    }
    plan = plan_of(step, kernel, batch, cluster=cluster)
    assert layout_of(plan, "0") == ((), (0,))
    assert max(c.num_bytes for c in plan.collectives) <= 8 * 128 * 4
    assert sum(c.count for c in plan.collectives) <= 5


def test_a_tied_embedding_is_split_over_the_vocabulary():
    """The 2.4B mixture's table, 131 MB, is looked up and multiplied where its rows lie.

    Its gradient is never reduced: no all-reduce or reduce-scatter is as large.
    """
    config = moe_config("2.4B", num_layers=2)
    plan = plan_of(*model_step(config, 16, optax.sgd(1e-3)).abstract)
    assert layout_of(plan, "token_embedding/embedding") == ((0,), ())
    table = config.vocab_size * config.hidden * 4
    assert not any(
        num_bytes >= table and kind in ("all-reduce", "reduce-scatter")
        for kind, num_bytes in large(plan)
    )


@pytest.mark.slow
def test_wide_resnet_splits_the_batch_early_and_channels_late():
    """Alpa section 8.1: batch axis early, channel axis late.

    One block of each group of the 2B model, 64 images.  In the first group the 3x3 kernel has 14 MB
    and its input 360 MB: gradients are reduced, activations stay.  In the last the 3x3 kernel
    has 925 MB and its result 90 MB: channels are split, activations are reduced or sent, and the
    kernel's gradient is never reduced.
    """
    config = replace(wide_resnet_config("2B"), num_layers=14)
    step, state, batch = model_step(config, 64, optax.sgd(1e-3)).abstract
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    opened = open_step(step, (state, batch), {}, signature)
    traced, plan = make_plan(
        lambda b, n: trace_step(opened, num_microbatches=b, num_devices=n),
        PlanRequest(method=mw.IntraOp((8,)), cluster=lambda: ONE_HOST),
    )
    tensors = traced.graph.tensors
    images: dict[tuple[int, ...], list[tuple[tuple[int, ...], ...]]] = {}
    for op, chosen in zip(traced.graph.operators, plan.decision.operators, strict=True):
        kernel = tensors[op.inputs[1]].shape if op.heavy else ()
        if kernel[:2] == (3, 3):  # a forward convolution: images and a 3x3 kernel
            images.setdefault(kernel, []).append(chosen.uses[0].layout.dims)
    early, late = min(images, key=math.prod), max(images, key=math.prod)
    assert all(dims == ((0,), (), (), ()) for dims in images[early])
    assert all(dims[0] == () for dims in images[late])
    assert layout_of(plan, "block_3_0/conv_2/kernel") != ((), (), (), ())
    gradient = math.prod(late) * 4
    assert not any(
        num_bytes >= gradient and kind in ("all-reduce", "reduce-scatter")
        for kind, num_bytes in large(plan)
    )
