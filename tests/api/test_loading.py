"""`step.loader` in one process, and what has no rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.examples import ROWS, Counting, batch_spec, expected_losses, new_state, order
from doubles.examples import train_step as examples_step
from meshwise.errors import DataError

pytestmark = pytest.mark.usefixtures("quick_steps")


def two(method: Any, **options: Any) -> mw.ParallelStep:
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    return mw.parallelize(examples_step, method=method, cluster=cluster, **options)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_loop_over_a_loader_trains_as_on_one_device(stages: int) -> None:
    step = (
        two(mw.DataParallel())
        if stages == 1
        else two(mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2)
    )
    state, losses = new_state(), []
    loader = step.loader(Counting(), state, batch_spec(), seed=1, epochs=1)
    for batch in loader:
        state, loss = step(state, batch)
        losses.append(float(loss))
    examples = order(1, 2 * ROWS)
    expected = expected_losses([examples[:ROWS], examples[ROWS:]])
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert loader.rows == {f"argument 1 (batch){[name]}": ((0, ROWS),) for name in ("x", "y")}


def test_a_step_that_follows_a_pipeline_has_a_loader_too() -> None:
    step, state = two(mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2), new_state()
    step.plan(state, batch_spec())

    def evaluate(state: Any, batch: Any) -> Any:
        h = batch["x"]
        for w in state:
            h = jnp.tanh(h @ w)
        return jnp.mean((h - batch["y"]) ** 2)

    follows = mw.parallelize(
        evaluate, method=mw.Follow(step), cluster=mw.Cluster.virtual("2x p3.2xlarge")
    )
    assert len(follows.plan(state, batch_spec()).stages) == 2
    loader = follows.loader(Counting(), state, batch_spec(), seed=1, epochs=1)
    found = float(follows(state, next(loader)))
    assert found == pytest.approx(expected_losses([order(1, ROWS)])[0], rel=1e-5)
    assert set(loader.rows.values()) == {((0, ROWS),)}


def test_several_batch_arguments_with_other_batch_dims() -> None:
    @mw.parallelize(
        method=mw.DataParallel(),
        cluster=mw.Cluster.virtual("2x p3.2xlarge"),
        batch_argnums=(1, 2),
        batch_dims=(1, 0),
    )
    def step(w: Any, x: Any, y: Any) -> Any:
        return w + jnp.mean(x) + jnp.mean(y)

    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    y = np.arange(10, dtype=np.float32)
    specs = (jax.ShapeDtypeStruct((2, 4), np.float32), jax.ShapeDtypeStruct((4,), np.float32))
    loader = step.loader((x, y), np.float32(0), *specs, shuffle=False)
    for given in loader:
        np.testing.assert_array_equal(given[0], x[:4].T)
        np.testing.assert_array_equal(given[1], y[:4])
        assert float(step(np.float32(0), *given)) == pytest.approx(x[:4].mean() + y[:4].mean())
        break


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({"batch_argnums": ()}, np.ones(4), "step has no batch data to load"),
        (
            {"batch_dims": {"x": 0, "k": None}},
            {"x": np.ones(4), "k": np.ones(2)},
            r"argument 1 \(batch\)\['k'\] has no batch dim",
        ),
    ],
)
def test_what_has_no_rows_is_refused(options: Any, batch: Any, message: str) -> None:
    def step(state: Any, batch: Any) -> Any:
        return state + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(batch))

    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    parallel = mw.parallelize(step, method=mw.DataParallel(), cluster=cluster, **options)
    with pytest.raises(DataError, match=message):
        parallel.loader(np.ones((9, 1)), np.float32(0), batch)


def test_rows_of_one_process_are_the_batch() -> None:
    rows = {"x": np.ones(3)}
    assert mw.host_batch(rows) is rows
