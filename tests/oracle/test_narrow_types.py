"""State and batches of four and eight bits, against one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import ProgramError, TraceError

pytestmark = [
    pytest.mark.usefixtures("quick_compile"),
    pytest.mark.filterwarnings("ignore:.*run whole on every device"),
]

WHOLE = ("int2", "uint2", "int4", "uint4")
FLOATS = ("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu")
METHODS: dict[str, dict[str, Any]] = {
    "data parallel": {"method": mw.DataParallel()},
    "micro-batches": {"method": mw.Zero3(), "num_microbatches": 2},
    "best": {"method": mw.IntraOp((2, 2))},
    "stages": {"method": mw.Auto(stages=2, schedule="1f1b"), "num_microbatches": 2},
}


def numbers(dtype: str, seed: int) -> jax.Array:
    return jnp.asarray(np.abs(np.random.default_rng(seed).normal(size=(8, 8)))).astype(dtype)


def quantised(state: Any, batch: Any) -> Any:
    """Weights of few bits with a scale that learns; some of them change."""

    def loss(scales: Any) -> Any:
        first = state["first"].astype(jnp.float32) * scales["first"]
        second = state["second"].astype(jnp.float32) * scales["second"]
        return jnp.mean((jnp.tanh(batch.astype(jnp.float32) @ first) @ second) ** 2)

    value, grads = mw.value_and_grad(loss)(state["scales"])
    scales = jax.tree.map(lambda w, g: w - 0.01 * g, state["scales"], grads)
    second = (state["second"].astype(jnp.float32) * 0.5).astype(state["second"].dtype)
    return state | {"scales": scales, "second": second}, value


def assert_same(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        wide = [np.asarray(x).astype(np.float64) for x in (a, b)]
        np.testing.assert_allclose(*wide, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [*WHOLE, *FLOATS])
@pytest.mark.parametrize("method", METHODS)
def test_quantised_weights(dtype: str, method: str) -> None:
    if method == "stages" and dtype not in ("int4", "float8_e4m3fn"):
        pytest.skip("two are enough")
    scales = {"first": np.float32(0.5), "second": np.float32(0.25)}
    state = {"first": numbers(dtype, 0), "second": numbers(dtype, 1), "scales": scales}
    batch = numbers(dtype, 2)
    step = mw.parallelize(quantised, cluster=cpu_cluster(4), donate_argnums=(), **METHODS[method])
    jitted = jax.jit(quantised)
    got, want = step(state, batch), jitted(state, batch)
    assert_same(got, want)
    assert_same(step(got[0], batch), jitted(want[0], batch))


@pytest.mark.parametrize(("dtype", "packed"), [("int8", 1), ("int4", 2), ("int2", 4)])
def test_each_number_is_counted_as_a_byte_and_packed_by_xla(dtype: str, packed: int) -> None:
    step = mw.parallelize(
        lambda state, batch: (state + state, jnp.sum(batch)),
        method=mw.DataParallel(),
        cluster=cpu_cluster(4),
    )
    args = jnp.ones((512, 512), dtype), numbers("float32", 0)
    predicted = step.plan(*args).peak_bytes
    assert predicted > 512**2
    assert packed * step.measured_peak_bytes(*args) == pytest.approx(predicted, rel=0.1)


def product(state: Any, batch: Any) -> Any:
    """A product of floats of eight bits whose result is one too, and its gradient."""

    def loss(w: Any) -> Any:
        return jnp.mean(jnp.tanh((batch @ w).astype(jnp.float32)) ** 2)

    value, grad = mw.value_and_grad(loss)(state)
    moved = state.astype(jnp.float32) - grad.astype(jnp.float32)
    return moved.astype(state.dtype), (value, jnp.sum(state, axis=0), state + state)


# Not of `float8_e8m0fnu`, which has no negative numbers: a gradient is a NaN or rounded elsewhere.
@pytest.mark.parametrize("dtype", FLOATS[:-1])
@pytest.mark.parametrize("method", ["data parallel", "best"])
def test_products(dtype: str, method: str) -> None:
    step = mw.parallelize(product, cluster=cpu_cluster(4), donate_argnums=(), **METHODS[method])
    state, batch = numbers(dtype, 0), numbers(dtype, 1)
    assert_same(step(state, batch), jax.jit(product)(state, batch))


def test_no_sum_over_micro_batches_is_rounded() -> None:
    step = mw.parallelize(product, cluster=cpu_cluster(4), **METHODS["micro-batches"])
    with pytest.raises(TraceError, match="sums of float8_e5m2 parts would be rounded; let the"):
        step.plan(numbers("float8_e5m2", 0), numbers("float8_e5m2", 1))


def test_no_sum_of_parts_is_rounded() -> None:
    """The dim that a product of eight bits sums over stays whole, and the report says why."""

    def fun(state: Any, batch: Any) -> Any:
        return state, jnp.einsum("bd,df->bf", batch, state)

    step = mw.parallelize(
        fun,
        method=mw.IntraOp((4,)),
        cluster=cpu_cluster(4),
        batch_argnums=(),
        pins={"0": jax.P("x"), "1": jax.P(None, "x")},
    )
    plan = step.plan(numbers("float8_e4m3fn", 0), numbers("float8_e4m3fn", 1))
    assert {c.kind for c in plan.collectives} <= {"all-gather", "all-to-all"}


def test_what_xla_does_not_compile() -> None:
    step = mw.parallelize(
        lambda state, batch: (state, batch @ state),
        method=mw.DataParallel(),
        cluster=cpu_cluster(4),
    )
    with pytest.raises(ProgramError, match=r"XLA does not compile the step for cpu devices: .*S2"):
        step(numbers("int2", 0), numbers("int2", 1))
