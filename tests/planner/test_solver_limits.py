"""The solver's seconds and seed that a user gives reach every solve of a pipeline's search."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.assignment.search import within_row
from meshwise.assignment.solver_time import SolverTime
from meshwise.inter.layer_cost import state_costs

pytestmark = pytest.mark.usefixtures("compiled_kernels")

STATE = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 4
BATCH = jax.ShapeDtypeStruct((16, 64), jnp.float32)


def step(state: Any, batch: Any) -> Any:
    def loss_fn(params: Any) -> Any:
        x = batch
        for w in params:
            x = jnp.tanh(jnp.tanh(x @ w) @ w.T) + x
        return jnp.mean(x**2)

    loss, grads = mw.value_and_grad(loss_fn)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), loss


def planned(method: mw.Auto) -> mw.Plan:
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    found = mw.parallelize(step, method=method, cluster=cluster, num_microbatches=2)
    return found.plan(STATE, BATCH)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Seconds and seed of each solve, as they are asked for."""
    found: list[tuple[float, int]] = []

    def recorder(inner: Any) -> Any:
        def recorded(problem: Any, **options: Any) -> Any:
            found.append((options["time_limit_s"], options["seed"]))
            return inner(problem, **options)

        return recorded

    for module, name in ((state_costs, "solve_relaxed"), (within_row, "solve")):
        monkeypatch.setattr(module, name, recorder(getattr(module, name)))
    return found


@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 2), ("interleaved-1f1b", 4)])
def test_limit_and_seed_reach_every_solve(
    asked: list[tuple[float, int]], schedule: str, stages: int
) -> None:
    planned(mw.Auto(stages=stages, schedule=schedule, time_limit_s=60.0, seed=7))
    assert asked
    assert {seed for _, seed in asked} == {7}
    # The views of a mesh have so many seconds for all their layers together.
    assert max(limit_s for limit_s, _ in asked) <= 60.0
    assert len({limit_s for limit_s, _ in asked}) > 1


def test_without_a_limit_counted_work_alone_ends_a_solve(asked: list[tuple[float, int]]) -> None:
    planned(mw.Auto(stages=2))
    assert set(asked) == {(float("inf"), 0)}


def test_a_plan_that_is_cut_short_is_a_plan() -> None:
    plan = planned(mw.Auto(stages=2, schedule="1f1b", time_limit_s=1e-6))
    assert len(plan.stages) == 2
    free = planned(mw.Auto(stages=2, schedule="1f1b"))
    assert plan.formula_s >= free.formula_s * (1 - 1e-9)


def test_what_one_solve_takes_the_next_ones_have_less() -> None:
    budget = SolverTime(60.0)
    with budget.used() as left_s:
        assert left_s == 60.0
        time.sleep(0.01)
    assert 59.0 < budget.left_s < 60.0
    spent = SolverTime(1e-9)
    with spent.used():
        time.sleep(0.01)
    assert spent.left_s == 0.0
