"""Gradients of biases, norms and embeddings are reduced once a step, not in every micro-batch."""

from __future__ import annotations

import jax
import pytest

import meshwise as mw
from meshwise.models.named import model_config
from meshwise.models.steps import model_step

NUM_MICROBATCHES = 4


# Auto may reduce the gradient of a matrix in every micro-batch, where adding up all of it on every
# device takes longer.
@pytest.mark.parametrize(
    ("method", "most_bytes"),
    [(mw.DataParallel(), 1 << 30), (mw.Zero2(), 1 << 30), (mw.Auto(), 512)],
)
def test_no_gradient_is_reduced_in_every_micro_batch(method: mw.Method, most_bytes: int) -> None:
    parts = model_step(model_config("gpt-tiny", num_layers=1), 32)
    step = mw.parallelize(parts.step, method=method, num_microbatches=NUM_MICROBATCHES)
    plan = step.plan(parts.state, parts.batch)
    sums = [c for c in plan.collectives if c.kind in ("all-reduce", "reduce-scatter")]
    assert any(c.count == 1 for c in sums)
    sizes = {x.size * x.dtype.itemsize for x in jax.tree.leaves(parts.state)}
    sizes = {n for n in sizes if n <= most_bytes}
    assert not [c for c in sums if c.count == NUM_MICROBATCHES and c.num_bytes in sizes]
