"""A step that is called with batches of other sizes keeps its state where it is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import CallError, PlanWarning

LAYERS, WIDTH = 4, 64
pytestmark = pytest.mark.filterwarnings("ignore:.*run whole on every device")


def unrolled(params: Any, batch: Any) -> Any:
    x = batch
    for weight in params.values():
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def scanned(params: Any, batch: Any) -> Any:
    return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params)[0] ** 2)


def step_of(loss: Any) -> Any:
    def step(params: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value

    return step


def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32)
    return {f"w{n}": draw[n] / 8 for n in range(LAYERS)}


def stacked() -> np.ndarray:
    return np.stack(list(weights().values()))


def batch(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)


def homes(params: Any) -> list[Any]:
    return [leaf.sharding for leaf in jax.tree.leaves(params)]


PIPELINE = {"method": mw.Auto(stages=2, schedule="1f1b"), "num_microbatches": 4}
ANY = {"method": mw.Auto(stages="auto"), "num_microbatches": "auto"}


@pytest.mark.parametrize(
    ("loss", "params", "sizes", "options"),
    [
        (unrolled, weights, (8, 512, 8), {}),
        (unrolled, weights, (512, 8, 512), {}),
        (unrolled, weights, (4096, 16, 8), PIPELINE),
        (unrolled, weights, (16, 4096), ANY),
        (scanned, stacked, (4096, 16), PIPELINE),
    ],
)
def test_state_stays_where_the_first_shapes_want_it(
    loss: Any, params: Any, sizes: tuple[int, ...], options: dict[str, Any]
) -> None:
    step = mw.parallelize(step_of(loss), cluster=cpu_cluster(4), **options)
    alone = jax.jit(step_of(loss))
    here, wanted = params(), params()
    known: list[Any] = []
    for rows in sizes:
        here, value = step(here, batch(rows))
        wanted, expected = alone(wanted, batch(rows))
        known.append(homes(here))
        np.testing.assert_allclose(value, expected, rtol=1e-5)

    assert all(found == known[0] for found in known)
    assert len(step.plans) == len(set(sizes))
    assert not any("must lie elsewhere" in text for plan in step.plans for text in plan.warnings)
    for mine, other in zip(jax.tree.leaves(here), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


def test_shapes_that_are_planned_first_decide() -> None:
    step, alone = (mw.parallelize(step_of(unrolled), cluster=cpu_cluster(4)) for _ in range(2))
    step.plan(weights(), batch(512))
    assert homes(step(weights(), batch(8))[0]) == homes(alone(weights(), batch(512))[0])
    # Without that the small batch has another plan, so the test says something.
    other = mw.parallelize(step_of(unrolled), cluster=cpu_cluster(4))
    assert homes(other(weights(), batch(8))[0]) != homes(step(weights(), batch(8))[0])


def test_state_that_cannot_stay_moves_with_a_warning() -> None:
    # With the state of the small batch on every device the large one does not fit.
    step = mw.parallelize(step_of(unrolled), cluster=cpu_cluster(4), memory_bytes=584_000)
    params, _ = step(weights(), batch(8))
    with pytest.warns(
        PlanWarning, match=r"0/w\d, must lie elsewhere than for the first ones.*plan fir"
    ):
        step(params, batch(1024))


def test_other_state_has_a_plan_of_its_own() -> None:
    step = mw.parallelize(step_of(unrolled), cluster=cpu_cluster(4))
    step(weights(), batch(8))
    fewer = dict(list(weights().items())[:2])
    assert not any("must lie elsewhere" in text for text in step.plan(fewer, batch(512)).warnings)


@pytest.mark.parametrize("method", [mw.DataParallel(), mw.Auto(stages=2, schedule="1f1b")])
def test_a_call_with_shapes_is_told_of_plan(method: Any) -> None:
    step = mw.parallelize(
        step_of(unrolled), method=method, cluster=cpu_cluster(2), num_microbatches=2
    )
    shape = jax.ShapeDtypeStruct((8, WIDTH), "float32")
    params = weights()
    for _ in range(2):
        with pytest.raises(CallError, match=r"has a jax.ShapeDtypeStruct; step.plan\(...\) takes"):
            step(params, shape)
        params, _ = step(params, np.ones((8, WIDTH), np.float32))
