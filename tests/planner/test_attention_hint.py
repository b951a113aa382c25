"""The warning that attention keeps its scores in memory where a kernel would not."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.planner.attention_hint import with_attention_hint
from meshwise.units import bytes_text

ROWS, HEADS = 8, 4
H100 = mw.Cluster.virtual("1x dgx-h100")


def step_of(dtype: Any, *, tokens: int = 512, features: int = 32, layers: int = 1, cap: Any = None):
    """A step with attention, its state and its batch."""
    width = HEADS * features

    def loss(params: Any, x: Any) -> jax.Array:
        for w in params:
            q, k, v = (jnp.einsum("bsd,dhe->bshe", x, w[n]) for n in "qkv")
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
            scores = scores if cap is None else cap(scores)
            weights = jax.nn.softmax(scores, axis=-1)
            x = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        return jnp.sum(x.astype(jnp.float32))

    def step(params: Any, x: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    one = jax.ShapeDtypeStruct((width, HEADS, features), dtype)
    batch = jax.ShapeDtypeStruct((ROWS, tokens, width), dtype)
    return step, [dict.fromkeys("qkv", one) for _ in range(layers)], batch


def hints(plan: mw.Plan) -> list[str]:
    return [text for text in plan.warnings if "cudnn" in text]


def planned(step: Any, state: Any, batch: Any, **options: Any) -> mw.Plan:
    return mw.parallelize(step, **{"cluster": H100, **options}).plan(state, batch)


def test_scores_that_fill_memory_are_told_once() -> None:
    plan = planned(*step_of(jnp.bfloat16, layers=2))
    (text,) = hints(plan)
    assert text.startswith("attention at test_attention_hint.py:")
    assert "bfloat16[8,4,512,512] with 16 MiB in the whole batch: they fill " in text
    assert f" of {bytes_text(plan.peak_bytes)} on a device at the peak" in text
    assert 'jax.nn.dot_product_attention(..., implementation="cudnn") keeps none' in text
    assert "mw.cudnn_attention" in text
    assert "it needs" not in text


def test_scores_of_a_micro_batch_are_told() -> None:
    (text,) = hints(planned(*step_of(jnp.bfloat16), num_microbatches=2))
    assert "they fill " in text


def test_single_precision_is_told_what_the_kernel_needs() -> None:
    (text,) = hints(planned(*step_of(jnp.float32)))
    assert text.endswith("; it needs bfloat16 or float16, and queries are float32")


@pytest.mark.parametrize("cluster", ["1x p3.16xlarge", "v5e-8", "8 cpu"])
def test_devices_without_the_kernel_get_no_hint(cluster: str) -> None:
    assert not hints(planned(*step_of(jnp.bfloat16), cluster=mw.Cluster.virtual(cluster)))


@pytest.mark.parametrize(
    "changes", [{"tokens": 32, "features": 128}, {"features": 512}, {"cap": jnp.tanh}]
)
def test_what_is_small_or_the_kernel_does_not_do_gets_no_hint(changes: Any) -> None:
    assert not hints(planned(*step_of(jnp.bfloat16, **changes)))


@pytest.mark.parametrize(("cluster", "count"), [("1x dgx-h100", 1), ("1x dgx-a100", 0)])
def test_wide_heads_need_a_hopper(cluster: str, count: int) -> None:
    wide = step_of(jnp.bfloat16, tokens=2048, features=256)
    assert len(hints(planned(*wide, cluster=mw.Cluster.virtual(cluster)))) == count


@pytest.mark.parametrize(("tokens", "has_bias", "count"), [(511, True, 0), (511, False, 1)])
def test_a_bias_needs_even_lengths(tokens: int, has_bias: bool, count: int) -> None:
    bias = jax.nn.one_hot(jnp.arange(HEADS), HEADS, dtype=jnp.bfloat16)[:, :1, None]
    cap = (lambda scores: scores + bias) if has_bias else None
    assert len(hints(planned(*step_of(jnp.bfloat16, tokens=tokens, cap=cap)))) == count


def test_a_softmax_over_classes_is_no_attention() -> None:
    def loss(classes: Any, x: Any) -> jax.Array:
        return jnp.sum((jax.nn.softmax(x @ classes.T, axis=-1) @ classes).astype(jnp.float32))

    def step(classes: Any, x: Any) -> Any:
        value, grad = mw.value_and_grad(loss)(classes, x)
        return classes - grad, value

    classes, x = (jax.ShapeDtypeStruct((n, 64), jnp.bfloat16) for n in (8192, 16384))
    assert not hints(planned(step, classes, x))


def test_stages_are_told_too() -> None:
    step, state, batch = step_of(jnp.bfloat16, layers=2)
    plan = planned(
        step, state, batch, method=mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2
    )
    (text,) = hints(plan)
    assert "softmax and mask take " in text
    assert "at the peak" not in text


def test_attention_that_is_one_operator_gets_no_hint() -> None:
    plan = planned(*step_of(jnp.bfloat16))
    bare = dataclasses.replace(plan, warnings=(), joins_attention=True)
    assert with_attention_hint(bare, lambda: pytest.fail("the step is not looked at")) == bare
