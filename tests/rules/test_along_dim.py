"""Fourier transforms: what XLA:CPU wants of a result, and XLA:TPU does not take."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.graph.loops import NONE
from meshwise.rules.along_dim import local_fft
from meshwise.spmd.shards import SpaceShards
from oracle.every_strategy import runs_of


@pytest.mark.parametrize(("platform", "is_ordered"), [("cpu", True), ("tpu", False)])
def test_only_cpus_get_an_order_of_the_result(platform: str, is_ordered: bool) -> None:
    (run,) = runs_of(jnp.fft.fft, (np.ones((4, 8), np.complex64),), "fft")
    shards = SpaceShards(run.rule, (NONE,), (1,), ("x",))

    def transform(x: jax.Array) -> jax.Array:
        return local_fft(run.equation, shards, [x])[0]

    lowered = jax.jit(transform).trace(*run.operands).lower(lowering_platforms=(platform,))
    assert ("LayoutConstraint" in lowered.as_text()) is is_ordered
