"""Plans of the models: nothing runs quietly whole on every device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from benchmarks.model_configs import CONFIGS

import meshwise as mw
from doubles.few import few
from meshwise.models.steps import model_step
from oracle.parallel import CLUSTER


def _names() -> list[Any]:
    """The U-Transformer takes ten times as long to plan as the others."""
    slow = {"u-transformer": [pytest.mark.slow]}
    return [pytest.param(name, marks=slow.get(name, [])) for name in CONFIGS]


@pytest.mark.parametrize("shape", few([(8,), (2, 4)], [(2, 4)]), ids=str)
@pytest.mark.parametrize("name", _names())
def test_nothing_of_a_model_runs_quietly_whole(name, shape):
    """At most 1 % of the FLOP and 5 % of the bytes, and no primitive without a rule."""
    step, state, batch = model_step(*CONFIGS[name]).abstract
    plan = mw.parallelize(step, method=mw.IntraOp(shape), cluster=CLUSTER).plan(state, batch)
    assert plan.replicated.flop_share <= 0.01
    assert plan.replicated.bytes_share <= 0.05
    assert plan.warnings == ()


@pytest.mark.parametrize("name", _names())
def test_data_parallel_only_reduces(name):
    """Statistics of a batch norm and gradients; no tensor is gathered or moved."""
    step, state, batch = model_step(*CONFIGS[name]).abstract
    plan = mw.parallelize(step, method=mw.DataParallel(), cluster=CLUSTER).plan(state, batch)
    assert {c.kind for c in plan.collectives} == {"all-reduce"}
    assert not [text for text in plan.warnings if "without all-gather" in text]


def test_what_a_method_had_to_concede_is_a_warning():
    def step(scale: Any, batch: Any) -> Any:
        return scale * 2, jnp.sort(batch @ scale, axis=0)

    scale, batch = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 64), (512, 64)))
    plan = mw.parallelize(step, method=mw.DataParallel(), cluster=CLUSTER).plan(scale, batch)
    (warning,) = [text for text in plan.warnings if "without all-gather" in text]
    assert warning.startswith("DataParallel() without all-gather has no plan for this step; it has")
    assert "sort" in warning


def test_a_forbidden_move_stays_so_in_a_loop_that_never_runs():
    """Its price is infinite, not infinity times zero."""

    def step(state: Any, batch: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            return carry + jnp.sort(batch * row, axis=0).sum(), jnp.sort(batch, axis=0)

        return state, jax.lax.scan(body, 0.0, jnp.zeros((0,)))

    batch = jax.ShapeDtypeStruct((16, 8), jnp.float32)
    plan = mw.parallelize(step, method=mw.DataParallel(), cluster=CLUSTER).plan(0.0, batch)
    assert plan.step_time_s < float("inf")
