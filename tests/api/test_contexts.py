"""Contexts of JAX's around a step: what `jax.jit` gives, or a typed error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import meshwise as mw
from doubles.few import few_rows
from meshwise.errors import CallError, NotFiniteError, PlanError, StateLostError, TraceError

pytestmark = [
    pytest.mark.usefixtures("quick_compile", "layers_known"),
    pytest.mark.filterwarnings("ignore:.*run whole on every device"),
]

RNG = np.random.default_rng(0)
STATE = {name: np.asarray(RNG.normal(size=(8, 8)), np.float32) for name in ("first", "second")}
X = np.asarray(RNG.normal(size=(8, 8)), np.float32)
Context = Callable[[], AbstractContextManager[Any]]
EXPLICIT = PartitionSpec("data")


def mesh(kind: jax.sharding.AxisType) -> Mesh:
    return jax.make_mesh((4,), ("data",), axis_types=(kind,))


def auto() -> AbstractContextManager[Any]:
    return jax.set_mesh(mesh(jax.sharding.AxisType.Auto))


def explicit() -> AbstractContextManager[Any]:
    return jax.set_mesh(mesh(jax.sharding.AxisType.Explicit))


def loss(state: Any, batch: Any) -> Any:
    def layer(x: Any, _: Any) -> Any:
        return jax.nn.softmax(jnp.tanh(x @ state["first"])), None

    hidden, _ = jax.lax.scan(layer, batch, None, length=2)
    mask = jax.random.bernoulli(jax.random.key(3), 0.5, batch.shape)
    return jnp.mean(jnp.where(mask, hidden @ state["second"], 0.0) ** 2)


def descended(state: Any, grads: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads)


def make_step() -> Callable[..., Any]:
    """A new function each time: `jax.jit` keeps traces by function."""

    def step(state: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(state, batch)
        # A default dtype follows from a context too.
        return descended(state, grads), (value, jnp.mean(batch) + jnp.arange(3.0))

    return step


def assert_same(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


CONTEXTS: dict[str, Context] = {
    "mesh of Auto axes": auto,
    "mesh of Explicit axes": explicit,
    "x64": lambda: jax.enable_x64(True),
    "without jit": jax.disable_jit,
    "NaNs": lambda: jax.debug_nans(True),
    "device": lambda: jax.default_device(jax.devices()[2]),
    "precision": lambda: jax.default_matmul_precision("highest"),
    "random bits": lambda: jax.default_prng_impl("rbg"),
    "threefry": lambda: jax.threefry_partitionable(False),
    "strict types": lambda: jax.numpy_dtype_promotion("strict"),
}
METHODS: dict[str, dict[str, Any]] = {
    "data parallel": {"method": mw.DataParallel()},
    "micro-batches": {"method": mw.Zero3(), "num_microbatches": 2},
}


# Micro-batches are traced in more ways, so they are under every context.
ROWS = [(method, name) for method in METHODS for name in CONTEXTS]
QUICK = [
    *(row for row in ROWS if row[0] == "micro-batches"),
    *(("data parallel", name) for name in ("mesh of Explicit axes", "x64", "without jit")),
]


@pytest.mark.parametrize(("method", "name"), few_rows(ROWS, QUICK))
def test_numbers_are_those_of_jit(method: str, name: str) -> None:
    context = CONTEXTS[name]
    fun = make_step()
    step, jitted = mw.parallelize(fun, **METHODS[method]), jax.jit(fun)
    for around in (context, nullcontext, context):
        with around():
            got = step(STATE, X)
            assert_same(got, jitted(STATE, X))
            assert_same(step(got[0], X), jitted(jitted(STATE, X)[0], X))


@pytest.mark.parametrize("around", [auto, explicit, jax.disable_jit])
def test_the_plan_is_the_same(around: Context) -> None:
    step = mw.parallelize(make_step(), method=mw.IntraOp((4,)), cluster=mw.Cluster.local())
    want = step.plan(STATE, X).to_json()
    with around():
        assert step.plan(STATE, X).to_json() == want
        assert "shard_map" in step.program_text(STATE, X)
        state = step.init(lambda: STATE, X)
        assert jax.tree.leaves(state)[0].sharding.mesh.axis_names == ("x",)


STAGES: dict[str, Any] = {"method": mw.Auto(stages=2, schedule="1f1b"), "num_microbatches": 2}


def in_two_layers(state: Any, batch: Any) -> Any:
    def error(state: Any) -> Any:
        return jnp.mean((jnp.tanh(batch @ state["first"]) @ state["second"]) ** 2)

    value, grads = mw.value_and_grad(error)(state)
    return descended(state, grads), value


@pytest.mark.parametrize("around", [auto, explicit, lambda: jax.debug_nans(True)])
def test_stages(around: Context) -> None:
    parallel = mw.parallelize(in_two_layers, **STAGES)
    with around():
        # On devices of the user's own; the type says so where axes are Explicit.
        spread = None if jax.sharding.get_abstract_mesh().empty else EXPLICIT
        got = parallel(jax.device_put(STATE, spread), jax.device_put(X, spread))
        assert_same(got, jax.jit(in_two_layers)(STATE, X))
        assert len(parallel.plans[0].stages) == 2
    with jax.disable_jit(), pytest.raises(TraceError, match="in several processes or stages"):
        parallel(STATE, X)


@pytest.mark.parametrize("options", [{"method": mw.DataParallel()}, STAGES])
def test_what_is_whole_is_computed_with_under_explicit_axes(options: Any) -> None:
    step = mw.parallelize(in_two_layers, **options)
    everywhere = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(everywhere):
        state, value = step(STATE, X)
        want, wanted = jax.jit(in_two_layers)(STATE, X)
        assert jax.typeof(value) == jax.typeof(wanted)
        assert_same(value + jnp.ones(()), wanted + 1)
        if options is not STAGES:
            assert_same(state["first"] @ state["second"], want["first"] @ want["second"])
        # No other plan, and nothing lost, where such arrays come back.
        assert_same(step(state, X), jax.jit(in_two_layers)(want, X))
        assert len(step.plans) == 1


@pytest.mark.parametrize("options", [METHODS["micro-batches"], STAGES])
def test_transfers_that_nobody_asked_for_are_forbidden(options: Any) -> None:
    step = mw.parallelize(in_two_layers, **options)
    state, batch = jax.tree.map(jnp.asarray, (STATE, X))
    want = jax.jit(in_two_layers)(state, batch)
    with jax.transfer_guard("disallow"):
        got, value = step(state, batch)
        step(got, batch)
        # As of `jax.jit`.
        with pytest.raises(
            CallError, match=r"\['first'\] of in_two_layers is in the memory of the"
        ):
            step(STATE, X)
    np.testing.assert_allclose(value, want[1], rtol=1e-5)


def test_stages_where_all_transfers_are_forbidden() -> None:
    step = mw.parallelize(in_two_layers, **STAGES)
    batch = jnp.asarray(X)
    state, _ = step(STATE, batch)
    with jax.transfer_guard("disallow_explicit"), pytest.raises(PlanError, match="use 'disallow'"):
        step(state, batch)
    step(state, batch)  # nothing is lost


def test_types_that_name_axes() -> None:
    def step(state: Any, batch: Any) -> Any:
        # Says what it is, and is refused by JAX where it is not.
        batch = jax.lax.with_sharding_constraint(batch, EXPLICIT)

        def error(state: Any) -> Any:
            hidden = jnp.einsum("bd,df->bf", batch, state["first"], out_sharding=EXPLICIT)
            return jnp.mean((jnp.tanh(hidden) @ state["second"]) ** 2)

        value, grads = mw.value_and_grad(error)(state)
        return descended(state, grads), value

    with explicit():
        state = jax.device_put(STATE, PartitionSpec())
        batch = jax.device_put(X, EXPLICIT)
        parallel = mw.parallelize(step, method=mw.DataParallel(), donate_argnums=())
        got = parallel(state, batch)
        assert_same(got, jax.jit(step)(state, batch))
        assert_same(parallel(got[0], batch), jax.jit(step)(jax.jit(step)(state, batch)[0], batch))


def test_types_of_gradients_without_a_plan() -> None:
    """Under `jax.jit` ours returns what JAX's own function does, its layout included."""

    def gradient(of: Any, state: Any, batch: Any) -> Any:
        def error(state: Any) -> Any:
            whole = jax.sharding.reshard(state, PartitionSpec())
            return jnp.mean((whole @ batch.T) ** 2)

        return jax.jit(lambda state: of(error)(state)[1])(state)

    with explicit():
        state, batch = (jax.device_put(x, EXPLICIT) for x in (X, STATE["first"]))
        want, got = (gradient(f, state, batch) for f in (jax.value_and_grad, mw.value_and_grad))
        assert jax.typeof(got) == jax.typeof(want)
        assert_same(got, want)


def test_64_bits_out_of_their_context() -> None:
    parallel = mw.parallelize(make_step(), method=mw.DataParallel())
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), STATE)
    with pytest.raises(TraceError, match=r"argument 0 .*is of type float64, and enable_x64 is off"):
        parallel(wide, X)


def test_without_jit_values_are_seen() -> None:
    seen: list[float] = []

    def step(state: Any, batch: Any) -> Any:
        value = jnp.mean(batch @ state["first"])
        seen.append(float(value))
        return state, value

    parallel = mw.parallelize(step, method=mw.DataParallel())
    with jax.disable_jit():
        _, value = parallel(STATE, X)
    assert seen == [float(value)]


@pytest.mark.parametrize("method", [mw.DataParallel(), mw.Auto(stages=2, schedule="1f1b")])
def test_nan_is_told(method: Any) -> None:
    def step(state: Any, batch: Any) -> Any:
        def error(state: Any) -> Any:
            hidden = jnp.tanh(batch @ state["first"]) @ state["second"]
            return jnp.mean(jnp.log(hidden - 100 * batch[0, 0]))

        value, grads = mw.value_and_grad(error)(state)
        return descended(state, grads), value

    parallel = mw.parallelize(step, method=method, num_microbatches=2)
    good = X - 10 * np.abs(X).max()
    state, _ = parallel(STATE, good)
    with jax.debug_nans(True):
        state, _ = parallel(state, good)
        with pytest.raises(FloatingPointError, match="step gave a NaN") as caught:
            parallel(state, -good)
    assert isinstance(caught.value, NotFiniteError)
    if isinstance(caught.value.__cause__, StateLostError):
        assert "the state is gone" in str(caught.value)
