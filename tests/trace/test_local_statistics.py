"""`microbatch_statistics="local"` against the same micro-batches run one by one on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from meshwise.errors import TraceError
from oracle.one_device import descent, heavy_outside_the_loop, run_traced, traced
from oracle.problem import run_once
from oracle.tolerances import X64

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

N = 16
WIDTH = 8
RNG = np.random.default_rng(0)
PARAMS = {
    "w": RNG.normal(size=(WIDTH, WIDTH)),
    "v": RNG.normal(size=(WIDTH, 4)),
    "scale": RNG.normal(size=WIDTH),
}
BATCH = {"x": RNG.normal(size=(N, WIDTH)), "mask": RNG.random(N) < 0.6}


def rows_of(t: int, b: int, groups: int) -> np.ndarray[Any, Any]:
    """Rows of micro-batch `t`, as `trace.time.state.Batch` defines them."""
    return np.asarray([r for r in range(N) if (r // (N // (groups * b))) % b == t])


def one_by_one(loss: Callable[..., Any], b: int, groups: int) -> Any:
    """Gradient descent with the mean of value, auxiliaries and gradients of the micro-batches."""

    def step(params, batch):
        results = []
        for t in range(b):
            rows = rows_of(t, b, groups)
            part = jax.tree.map(lambda x, rows=rows: x[rows], batch)
            results.append(jax.value_and_grad(loss)(params, part))
        value, grads = jax.tree.map(lambda *terms: sum(terms) / b, *results)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), (value, None)

    return run_once(step, PARAMS, BATCH)


def batch_norm(p, batch):
    h = batch["x"] @ p["w"]
    h = (h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-5) * p["scale"]
    return jnp.mean(jnp.tanh(h) @ p["v"])


def two_batch_norms(p, batch):
    h = batch["x"]
    for _ in range(2):
        h = h @ p["w"]
        h = jnp.tanh((h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-5))
    return jnp.mean((h @ p["v"]) ** 2)


def load_balance(p, batch):
    gate = jax.nn.softmax(batch["x"] @ p["w"])
    top = jax.nn.one_hot(gate.argmax(-1), WIDTH)
    return jnp.mean((gate @ p["v"]) ** 2) + jnp.sum(gate.mean(0) * top.mean(0))


def root_of_a_mean(p, batch):
    return jnp.sqrt(jnp.mean((batch["x"] @ p["w"]) ** 2))


def root_of_two_sums(p, batch):
    """What is localized is the sum of two terms, not a reduction."""
    h = batch["x"] @ p["w"]
    total = jnp.sum(h**2, axis=0) + jnp.sum(jnp.cosh(h), axis=0)
    return jnp.sum(jnp.sqrt(total / len(h)))


def largest_loss(p, batch):
    return jnp.max(jnp.sum((batch["x"] @ p["w"]) ** 2, axis=-1))


def with_l2(p, batch):
    return batch_norm(p, batch) + 0.1 * jnp.sum(p["w"] ** 2)


def separable(p, batch):
    return jnp.mean(jnp.tanh(batch["x"] @ p["w"]) @ p["v"])


@pytest.mark.parametrize("num_devices", [1, 4])
@pytest.mark.parametrize(
    "loss",
    [
        *(batch_norm, two_batch_norms, load_balance, root_of_a_mean, root_of_two_sums),
        *(largest_loss, with_l2, separable),
    ],
    ids=lambda f: f.__name__,
)
def test_statistics_are_those_of_each_micro_batch(loss, num_devices):
    b = 4
    step = descent(loss)
    cut = traced(step, PARAMS, BATCH, b=b, num_devices=num_devices, statistics="local")
    assert heavy_outside_the_loop(cut.program, b) == []
    got = run_traced(cut, PARAMS, BATCH)
    want = one_by_one(loss, b, groups=num_devices)
    jax.tree.map(lambda a, c: np.testing.assert_allclose(c, a, rtol=0, atol=X64), want, got)
    if loss is not separable:
        whole = run_once(step, PARAMS, BATCH)[1][0]
        assert abs(float(whole - got[1][0])) > 1e-6


def squared(loss: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer that is not linear in the gradient: the first step of RMSProp."""

    def step(params, batch):
        value, grads = mw.value_and_grad(loss)(params, batch)
        moments = jax.tree.map(jnp.square, grads)
        updated = jax.tree.map(
            lambda p, g, m: p - 0.1 * g / (jnp.sqrt(m) + 1e-3), params, grads, moments
        )
        return updated, (value, moments)

    return step


def test_an_optimizer_sees_the_averaged_gradient():
    """Not each micro-batch's own: the mean of squares is not the square of the mean."""

    def averaged(params, batch):
        parts = [jax.tree.map(lambda x, t=t: x[rows_of(t, 4, 4)], batch) for t in range(4)]
        return sum(batch_norm(params, part) for part in parts) / 4

    cut = traced(squared(batch_norm), PARAMS, BATCH, b=4, statistics="local")
    got = run_traced(cut, PARAMS, BATCH)
    want = jax.jit(squared(averaged))(PARAMS, BATCH)
    jax.tree.map(lambda a, c: np.testing.assert_allclose(c, a, rtol=0, atol=X64), want, got)


def test_local_statistics_need_the_place_of_the_loss():
    def step(params, batch):
        value, grads = jax.value_and_grad(batch_norm)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    with pytest.raises(TraceError, match=r"write meshwise.value_and_grad .* in place of jax"):
        traced(step, PARAMS, BATCH, b=4, statistics="local")


def test_running_averages_are_averaged():
    """BatchNorm as Flax has it: statistics leave the loss and move an average in the state."""

    def step(state, batch):
        def loss(p):
            h = batch["x"] @ p["w"]
            average = h.mean(0)
            normal = (h - average) * jax.lax.rsqrt(h.var(0) + 1e-5)
            return jnp.mean(jnp.tanh(normal) @ p["v"]), average

        (value, average), grads = mw.value_and_grad(loss, has_aux=True)(state["params"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return {"params": params, "average": 0.9 * state["average"] + 0.1 * average}, value

    state = {"params": PARAMS, "average": np.ones(WIDTH)}
    cut = traced(step, state, BATCH, b=2, statistics="local")
    got, _ = run_traced(cut, state, BATCH)
    want = 0.9 + 0.1 * (BATCH["x"] @ PARAMS["w"]).mean(0)
    np.testing.assert_allclose(got["average"], want, rtol=1e-12)


def test_a_masked_mean_stays_exact():
    """What can be known before the loop is no statistic of a micro-batch."""

    def loss(p, batch):
        each = jnp.sum(jnp.tanh(batch["x"] @ p["w"]) @ p["v"], -1)
        return jnp.sum(each * batch["mask"]) / batch["mask"].sum()

    step = descent(loss)
    cut = traced(step, PARAMS, BATCH, b=2, statistics="local")
    got, want = run_traced(cut, PARAMS, BATCH), run_once(step, PARAMS, BATCH)
    jax.tree.map(lambda a, c: np.testing.assert_allclose(c, a, rtol=0, atol=X64), want, got)
