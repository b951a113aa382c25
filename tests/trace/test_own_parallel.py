"""A step with parallel code of its own means what it says on whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import TraceError
from meshwise.trace.own_parallel import on_whole_arrays

pytestmark = [
    pytest.mark.usefixtures("quick_compile"),
    pytest.mark.filterwarnings("ignore:.*run whole on every device"),
]

RNG = np.random.default_rng(0)
STATE = {"w": np.asarray(RNG.normal(size=(8, 8)), np.float32)}
X = np.asarray(RNG.normal(size=(8, 8)), np.float32)


def mesh(*sizes: int) -> Mesh:
    names = ("data", "model")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def over(fun: Any, in_specs: Any, out_specs: Any, sizes: Any = (4,), **options: Any) -> Any:
    return jax.shard_map(fun, mesh=mesh(*sizes), in_specs=in_specs, out_specs=out_specs, **options)


def summed(x: Any) -> Any:
    return x - lax.pmean(x, "data")


def gathered(x: Any) -> Any:
    return jnp.tanh(x) @ lax.all_gather(x, "data", axis=0, tiled=True).T


def passed_on(x: Any) -> Any:
    return x * lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)])


def scattered(x: Any) -> Any:
    return lax.psum_scatter(x, "data", scatter_dimension=1, tiled=True)


def exchanged(x: Any) -> Any:
    return lax.all_to_all(x, "data", split_axis=1, concat_axis=0, tiled=True)


def numbered(x: Any) -> Any:
    return x * (1 + lax.axis_index("data"))


def looped(x: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        return carry + lax.pmax(lax.stop_gradient(carry), "data"), None

    return lax.scan(body, x, None, length=2)[0]


def chosen(x: Any) -> Any:
    return lax.cond(lax.axis_index("data") > 1, lambda x: 2 * x, lambda x: jax.nn.relu(x), x)


@jax.checkpoint
def recomputed(x: Any) -> Any:
    return lax.psum(jnp.sin(x), "data") * x


def normalised(x: Any) -> Any:
    rows = jax.vmap(lambda row: row - lax.pmean(row, "rows"), axis_name="rows")(x)
    return rows * lax.psum(x, "data")


def split_product(x: Any, w: Any) -> Any:
    return lax.psum(x @ w, "model")


def handed_on(x: Any) -> Any:
    """The first device receives nothing: zeros."""
    return x + lax.ppermute(jnp.sin(x), "data", [(i, i + 1) for i in range(3)])


def drawn(x: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(0, impl="unsafe_rbg"), lax.axis_index("data"))
    return x * jax.random.normal(jax.random.split(key)[1], x.shape)


BOTH = ("data", "model")
BY_BOTH = P(BOTH)


def over_both(kernel: Callable[[Any], Any], out_specs: Any = BY_BOTH) -> Callable[[Any], Any]:
    return over(kernel, BY_BOTH, out_specs, (4, 2))


KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "pmean": lambda x, w: over(summed, P("data"), P("data"))(x @ w),
    "all_gather": lambda x, w: over(gathered, P("data"), P("data"))(x @ w),
    "ppermute": lambda x, w: over(passed_on, P("data"), P("data"))(x @ w),
    "ppermute to some": lambda x, w: over(handed_on, P("data"), P("data"))(x @ w),
    "ppermute to some in a loop": lambda x, w: over(
        lambda x: lax.scan(lambda c, _: (handed_on(c), None), x, None, length=2)[0],
        P("data"),
        P("data"),
    )(x @ w),
    "random bits of XLA": lambda x, w: over(drawn, P("data"), P("data"))(x @ w),
    "all_gather over two axes": lambda x, w: over_both(
        lambda x: x * jnp.sum(lax.all_gather(x, BOTH) * jnp.arange(8)[:, None, None], 0)
    )(x @ w),
    "psum_scatter over two axes": lambda x, w: over_both(
        lambda x: lax.psum_scatter(x, ("model", "data"), scatter_dimension=1, tiled=True),
        P(None, BOTH),
    )(x @ w),
    "psum_scatter": lambda x, w: over(scattered, P("data"), P(None, "data"))(x @ w),
    "all_to_all": lambda x, w: over(exchanged, P("data"), P(None, "data"))(x @ w),
    "axis_index": lambda x, w: over(numbered, P("data"), P("data"))(x @ w),
    "scan": lambda x, w: over(looped, P("data"), P("data"))(x @ w),
    "cond": lambda x, w: over(chosen, P("data"), P("data"))(x @ w),
    "checkpoint": lambda x, w: over(recomputed, P("data"), P("data"))(x @ w),
    "checkpoint of it": lambda x, w: jax.checkpoint(over(passed_on, P("data"), P("data")))(x @ w),
    "loop over it": lambda x, w: lax.scan(
        lambda c, _: (over(passed_on, P("data"), P("data"))(jnp.tanh(c)), None),
        x @ w,
        None,
        length=2,
    )[0],
    "unchecked": lambda x, w: over(recomputed, P("data"), P("data"), check_vma=False)(x @ w),
    "two axes": lambda x, w: over(
        split_product, (P("data", "model"), P("model")), P("data"), (4, 2)
    )(x, w),
    "one of two axes": lambda x, w: over(summed, P("data"), P("data"), (4, 2), axis_names={"data"})(
        x @ w
    ),
    "two axes of one dim": lambda x, w: over(
        lambda x: x * lax.axis_index(("model", "data")),
        P(("model", "data")),
        P(("model", "data")),
        (4, 2),
    )(x @ w),
    "the same everywhere": lambda x, w: over(lambda x: lax.psum(x, "data"), P("data"), P())(x @ w),
    "in another": lambda x, w: over(
        lambda x, w: summed(
            jax.shard_map(
                split_product,
                in_specs=(P(None, "model"), P("model")),
                out_specs=P(),
                axis_names={"model"},
            )(x, w)
        ),
        (P("data"), P()),
        P("data"),
        (2, 2),
        axis_names={"data"},
    )(x, w),
    "nested": lambda x, w: over(normalised, P("data"), P("data"), check_vma=False)(x @ w),
    "vmap": lambda x, w: jax.vmap(lambda r: r * lax.psum(r, "i"), axis_name="i")(x @ w),
    "vmap of it": lambda x, w: jax.vmap(over(summed, P("data"), P("data")))(
        jnp.stack([x, 2 * x]) @ w
    ),
    "pmap": lambda x, w: jax.pmap(summed, "data", devices=jax.devices()[:4])(
        jnp.reshape(x @ w, (4, 2, 8))
    ),
}


def step_of(kernel: Callable[[Any, Any], Any]) -> Any:
    def step(state: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(lambda s: jnp.mean(kernel(batch, s["w"]) ** 2))(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

    return step


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("method", [mw.DataParallel(), mw.IntraOp((2, 2))])
def test_numbers(name: str, method: Any) -> None:
    step = step_of(KERNELS[name])
    want = jax.jit(step)(STATE, X)
    cluster = cpu_cluster(4)
    got = mw.parallelize(step, method=method, cluster=cluster)(STATE, X)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def in_two_stages(kernel: Callable[[Any], Any]) -> Any:
    def step(state: Any, batch: Any) -> Any:
        def loss(state: Any) -> Any:
            return jnp.mean((kernel(batch @ state["first"]) @ state["second"]) ** 2)

        value, grads = mw.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

    parallel = mw.parallelize(step, method=mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2)
    state = {"first": STATE["w"], "second": STATE["w"].T}
    return jax.jit(step)(state, X), parallel(state, X)


def test_stages() -> None:
    def kernel(x: Any) -> Any:
        return over(
            lambda x: jnp.tanh(x * (1 + lax.axis_index("data"))), P(None, "data"), P(None, "data")
        )(x)

    want, got = in_two_stages(kernel)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_stages_refuse_derivatives_of_parts() -> None:
    with pytest.raises(
        TraceError, match=r"function at test_own_parallel.py:\d+.* has a derivative"
    ):
        in_two_stages(over(lambda x: jax.nn.relu(x), P(None, "data"), P(None, "data")))


def test_an_axis_that_nothing_binds() -> None:
    step = step_of(lambda x, w: lax.psum(x @ w, "devices"))
    with pytest.raises(TraceError, match=r"step at test_own_parallel.py:\d+ .*axis name: devices;"):
        mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(4)).plan(STATE, X)


def test_groups_of_an_axis_are_refused() -> None:
    def grouped(x: Any) -> Any:
        return lax.psum(x, "data", axis_index_groups=[[0, 1], [2, 3]])

    step = step_of(lambda x, w: over(grouped, P("data"), P("data"), check_vma=False)(x @ w))
    with pytest.raises(
        TraceError, match=r"shard_map at test_own_parallel.py:\d+.* cannot be taken"
    ):
        mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(4)).plan(STATE, X)


def test_permutations_of_several_axes_are_refused() -> None:
    def permuted(x: Any) -> Any:
        return lax.ppermute(x, BOTH, [(0, 5), (1, 2)])

    step = step_of(lambda x, w: over_both(permuted)(x @ w))
    with pytest.raises(TraceError, match=r"shard_map at test_own_.*: ppermute over several axes"):
        mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(4)).plan(STATE, X)


def test_kernels_of_parts_are_refused() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = jnp.sin(x[...])

    def on_part(x: Any) -> Any:
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pallas.pallas_call(kernel, out_shape=like, interpret=True)(x)

    def step(state: Any, batch: Any) -> Any:
        own = over(on_part, P("data"), P("data"), check_vma=False)
        return state, jnp.mean(own(batch @ state["w"]))

    with pytest.raises(TraceError, match=r"Pallas kernel at test_own_parallel.py:\d+"):
        mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(4)).plan(STATE, X)


@pytest.mark.parametrize("name", ["vmap", "ppermute"])
def test_own_axes_are_dims_that_a_plan_splits(name: str) -> None:
    """Little runs whole on every device: neither the sum over the axis nor what is permuted."""
    step = step_of(KERNELS[name])
    plan = mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(4)).plan(STATE, X)
    assert plan.replicated.flop_share < 0.1


def test_nothing_is_traced_anew_without_need() -> None:
    closed = jax.make_jaxpr(lambda x: jnp.sin(x) @ x)(X)
    assert on_whole_arrays(closed) is closed
