"""Values that all rows have a part in cross cuts: once a step, or in each micro-batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.layered_steps import Step, assert_equal, layering, norms_step
from doubles.planned_stages import StageShape, planned_stages
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.schedules.registry import make_schedule
from meshwise.trace.layers.layering import Layering
from oracle.one_device import run_traced, traced
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")

SHAPES: list[StageShape] = [(0, 0, (2,), "none"), (1, 1, (1, 2), "full"), (2, 3, (1,), "none")]


def run(layers: Layering, args: Any, b: int) -> list[Any]:
    order = make_schedule("1f1b", num_stages=len(SHAPES), num_microbatches=b)
    return make_pipeline(layers, planned_stages(layers, b, SHAPES), order).run(
        jax.tree.leaves(args)
    )


def balanced_step() -> tuple[Step, tuple[Any, ...]]:
    """Terms of the loss that early layers make and later ones add; some are returned."""

    def loss(params: Any, x: Any) -> Any:
        terms, total = [], 0.0
        for w in params:
            x = jnp.tanh(x @ w)
            terms.append(jnp.mean(x**2))
            total = total + 0.1 * terms[-1] + 0.2 * terms[0]
        return jnp.mean(x) + total, (terms[0], jnp.max(x), total)

    def step(state: Any, x: Any) -> Any:
        (value, aux), grads = mw.value_and_grad(loss, has_aux=True)(state, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value, aux

    rng = np.random.default_rng(2)
    weights = [jnp.asarray(rng.normal(size=(4, 4))) for _ in range(4)]
    return step, (weights, jnp.asarray(rng.normal(size=(8, 4))))


def test_terms_of_the_loss_cross_cuts_once_a_step() -> None:
    step, args = balanced_step()
    layers = layering(step, args, 4)
    joints = [layers.joint(k, k) for k in range(4)]
    readers = Counter(v for j in joints for v in j.once.intersection(j.piece.entering))
    assert max(readers.values()) > 1
    expected = jax.tree.leaves(quick_jit(step)(*args))
    assert_equal(run(layers, args, 4), expected)


def test_statistics_of_a_micro_batch_cross_cuts_with_it() -> None:
    """Batch norms cut in the middle; running means are results."""
    step, args = norms_step()
    layers = layering(step, args, 4, local_statistics=True)
    assert any(layers.joint(k, k).joined for k in range(4))
    assert not any(layers.joint(k, k).once for k in range(4))
    cut = traced(step, *args, b=4, num_devices=1, statistics="local")
    expected = jax.tree.leaves(run_traced(cut, *args))
    assert_equal(run(layers, args, 4), expected)
