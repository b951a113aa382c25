"""A step in pipeline stages is the step: the oracle is JAX on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

from doubles.layered_steps import CLIPPED, Step, assert_equal, gpt_step, layering, unet_step
from doubles.planned_stages import StageShape, planned_stages
from meshwise.runtime.pipeline.pipeline import make_pipeline
from meshwise.schedules.registry import make_schedule

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")

Case = tuple[Callable[[], tuple[Step, tuple[Any, ...]]], int, str, list[StageShape]]

CASES: dict[str, Case] = {
    "tied embedding, clipping, dropout, uneven stages": (
        lambda: gpt_step(CLIPPED, dropout=0.2),
        4,
        "1f1b",
        [(0, 1, (2, 2), "none"), (2, 2, (1, 2), "full"), (3, 4, (2, 1), "none")],
    ),
    "momentum": (
        lambda: gpt_step(optax.sgd(0.1, momentum=0.9), dropout=0.2),
        2,
        "1f1b",
        [(0, 2, (2, 2), "none"), (3, 4, (1, 4), "none")],
    ),
    "skips over a stage": (
        unet_step,
        4,
        "gpipe",
        [(0, 1, (2, 1), "none"), (2, 2, (1, 2), "full"), (3, 4, (2, 2), "none")],
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "momentum" else ()) for name in CASES],
)
def test_a_pipeline_is_the_step(name: str) -> None:
    make, count, schedule, shapes = CASES[name]
    step, args = make()
    layers = layering(step, args, 5)
    expected = jax.tree.map(host, jax.tree.leaves(jax.jit(step)(*args)))
    order = make_schedule(schedule, num_stages=len(shapes), num_microbatches=count)
    pipeline = make_pipeline(layers, planned_stages(layers, count, shapes), order)
    found = pipeline.run(jax.tree.leaves(args))
    assert_equal(found, expected)
    for array in found:
        assert_replicas_are_equal(array)


def host(x: Any) -> Any:
    """A copy that no donation takes away."""
    return x if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else np.array(x)


def assert_replicas_are_equal(array: Any) -> None:
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    shards: dict[str, Any] = {}
    for shard in array.addressable_shards:
        first = shards.setdefault(str(shard.index), np.asarray(shard.data))
        np.testing.assert_array_equal(np.asarray(shard.data), first)
