"""State in the memory of the host: the same bits, and less memory of the GPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwise as mw
from doubles.adam_step import ADAM, adam_step, shapes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU"),
]

STATE, BATCH = shapes((1024,) * 7)


def start() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    weights = [(rng.normal(size=s.shape) / 32).astype(np.float32) for s in STATE[0]]
    batch = {name: rng.normal(size=s.shape).astype(np.float32) for name, s in BATCH.items()}
    return (weights, jax.tree.map(np.asarray, ADAM.init(weights))), batch


def stepped(offload: bool) -> tuple[Any, list[jax.Array]]:
    """The parallel step, and the leaves of the state after three steps."""
    step = mw.parallelize(adam_step(), method=mw.Auto(offload=offload))
    state, batch = start()
    for _ in range(3):
        state, _ = step(state, batch)
    return step, jax.tree.leaves(state)


def test_moments_in_the_host_keep_their_bits_and_free_memory() -> None:
    (free, expected), (step, found) = stepped(False), stepped(True)
    assert sum(x.sharding.memory_kind == "pinned_host" for x in found) == 12
    for a, b in zip(found, expected, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    freed = free.measured_peak_bytes(STATE, BATCH) - step.measured_peak_bytes(STATE, BATCH)
    predicted = free.plan(STATE, BATCH).peak_bytes - step.plan(STATE, BATCH).peak_bytes
    assert freed >= 0.5 * predicted > 0
