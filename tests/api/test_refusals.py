"""A refusal of the planner ends at the user's call."""

from __future__ import annotations

import traceback
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import InfeasibleError


def files_of_refusal(method: Any) -> set[str]:
    def fun(state: Any, batch: Any) -> Any:
        loss, grads = mw.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state)
        return state - grads, loss

    step = mw.parallelize(fun, method=method, cluster=cpu_cluster(2), memory_bytes=2**14)
    with pytest.raises(InfeasibleError) as caught:
        step.plan(jnp.ones((32, 32)), jnp.ones((1024, 32)))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    frames = traceback.extract_tb(caught.value.__traceback__)
    return {frame.filename.rpartition("/")[2] for frame in frames}


@pytest.mark.parametrize("method", [mw.Zero3(), mw.Auto(stages=2, schedule="1f1b")])
def test_a_refusal_has_no_frames_of_the_planner(method: Any) -> None:
    assert files_of_refusal(method) == {"test_refusals.py", "parallel_step.py", "refusals.py"}


def test_all_frames_are_there_when_jax_is_asked_for_them() -> None:
    before: str = jax.config.values["jax_traceback_filtering"]
    jax.config.update("jax_traceback_filtering", "off")
    try:
        assert "one_mesh.py" in files_of_refusal(mw.Zero3())
    finally:
        jax.config.update("jax_traceback_filtering", before)
