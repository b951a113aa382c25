"""What stands in a plan's warnings is a Python warning too, at the user's line."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.api import parallel_step
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import PlanWarning

STATE, ROWS = jnp.ones((3, 5)), jnp.ones((8, 3))


def lonely(state: Any, rows: Any) -> Any:
    """No loop of this step can be split evenly by 8, but that of the rows, which it sorts."""
    return state - jnp.sort(rows.sum(1))[0], rows[0, 0]


def test_a_plan_warns_once_and_names_the_line_of_the_call() -> None:
    step = mw.parallelize(lonely, cluster=mw.Cluster.virtual("1x dgx-h100"))
    with pytest.warns(PlanWarning) as caught:
        plan = step.plan(STATE, ROWS)
    assert [str(w.message) for w in caught] == [f"lonely: {text}" for text in plan.warnings]
    assert {w.filename for w in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step.plan(STATE, ROWS) is plan


def test_one_cpu_device_is_told_of_where_no_cluster_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel_step, "seen_cluster", lambda: cpu_cluster(1))
    monkeypatch.setattr("meshwise.api.parallelize.seen_cluster", parallel_step.seen_cluster)
    with pytest.warns(PlanWarning, match=r"one CPU device.*jax_num_cpu_devices"):
        mw.parallelize(lonely).plan(STATE, ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mw.parallelize(lonely, cluster=cpu_cluster(1)).plan(STATE, ROWS)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("lower", "program_text"),
        ("trace", "plan"),
        ("eval_shape", "__wrapped__"),
        ("clear_cache", "anew"),
    ],
)
def test_what_a_function_of_jit_has_is_told_what_to_use(name: str, remedy: str) -> None:
    assert hasattr(jax.jit(lonely), name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{remedy}"):
        getattr(mw.parallelize(lonely), name)


def test_a_plan_is_one_line_when_it_is_shown() -> None:
    step = mw.parallelize(lonely, cluster=mw.Cluster.virtual("1x dgx-h100"))
    shown = repr(step.plan(STATE, ROWS))
    assert shown.startswith("<Plan: ")
    assert "on 1x dgx-h100, " in shown
    assert " a step, " in shown
    assert "\n" not in shown
