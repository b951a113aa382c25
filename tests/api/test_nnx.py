"""`mw.nnx`: a step of NNX as Flax documents it trains, and equals `nnx.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import LossError, TraceError

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)


class Net(nnx.Module):
    """Layers with statistics and random numbers inside."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(3)])
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.last = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for layer in self.hidden:
            x = self.drop(jnp.tanh(layer(x)))
        return self.last(x)


class Normalised(Net):
    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return super().__call__(self.norm(x))


def made(kind: type[Net] = Net) -> tuple[Any, Any]:
    model = kind(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def step_with(value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            return jnp.mean((model(x) - y) ** 2)

        loss, grads = value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    return step


documented = step_with(nnx.value_and_grad)
marked = step_with(mw.nnx.value_and_grad)


def trained(step: Any, objects: Any, num_steps: int = 3) -> list[float]:
    return [float(step(*objects, X, Y)) for _ in range(num_steps)]


def arrays(objects: Any) -> list[np.ndarray]:
    leaves = jax.tree.leaves(nnx.split(objects)[1])
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [
        np.asarray(jax.random.key_data(leaf) if key else leaf)
        for leaf, key in zip(leaves, is_key, strict=True)
    ]


@pytest.mark.filterwarnings("ignore::meshwise.errors.PlanWarning")
@pytest.mark.parametrize(
    ("step", "kind", "options"),
    [
        (documented, Normalised, {"method": mw.DataParallel()}),
        (marked, Normalised, {"method": mw.Zero3()}),
        (documented, Net, {"num_microbatches": 2}),
        (marked, Net, {"method": mw.Auto(stages=2, schedule="1f1b"), "num_microbatches": 4}),
    ],
)
def test_a_step_as_flax_documents_it_trains(
    step: Any, kind: type[Net], options: dict[str, Any]
) -> None:
    alone, here = made(kind), made(kind)
    parallel = mw.nnx.parallelize(step, cluster=cpu_cluster(4), **options)
    hidden = here[0].hidden[0].kernel

    assert trained(parallel, here) == pytest.approx(trained(nnx.jit(documented), alone), rel=1e-5)

    for mine, wanted in zip(arrays(here), arrays(alone), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-6)
    assert here[0].hidden[0].kernel is hidden
    assert len(parallel.plans) == 1
    # A module that lies where the plan wants it is not copied; JAX 0.11 does not take over an array
    # that NumPy has read.
    trained(parallel, here, 1)
    first = here[0].last.kernel[...]
    trained(parallel, here, 1)
    assert first.is_deleted()


def test_the_state_is_born_sharded_as_one_argument() -> None:
    def step(objects: Any, x: Any, y: Any) -> Any:
        return documented(*objects, x, y)

    parallel = mw.nnx.parallelize(
        step, method=mw.Zero3(), cluster=cpu_cluster(4), batch_argnums=(1, 2)
    )
    objects = parallel.init(lambda: made(), X, Y)
    assert isinstance(objects[0], Net)
    assert not objects[0].hidden[0].kernel[...].sharding.is_fully_replicated
    losses = [float(parallel(objects, X, Y)) for _ in range(3)]
    assert losses == pytest.approx(trained(nnx.jit(documented), made()), rel=1e-5)


def test_the_state_is_born_sharded_as_several_arguments() -> None:
    parallel = mw.nnx.parallelize(documented, method=mw.Zero3(), cluster=cpu_cluster(4))
    model, optimizer = parallel.init(lambda: made(), X, Y)
    assert isinstance(model, Net)
    for kernel in (model.hidden[0].kernel, optimizer.opt_state[0].trace["last"]["kernel"]):
        assert not kernel[...].sharding.is_fully_replicated
    losses = [float(parallel(model, optimizer, X, Y)) for _ in range(3)]
    assert losses == pytest.approx(trained(nnx.jit(documented), made()), rel=1e-5)
    assert len(parallel.plans) == 1


def test_a_plan_made_before_is_that_of_the_state() -> None:
    parallel = mw.nnx.parallelize(documented, method=mw.DataParallel(), cluster=cpu_cluster(2))
    parallel.plan(*nnx.eval_shape(made), X, Y)
    model, optimizer = parallel.init(lambda: made(), X, Y)
    parallel(model, optimizer, X, Y)
    assert isinstance(parallel.init(made)[0], Net)
    assert len(parallel.plans) == 1


def test_init_after_a_plan_needs_no_batch_where_modules_are_one_argument() -> None:
    def step(objects: Any, x: Any, y: Any) -> Any:
        return documented(*objects, x, y)

    parallel = mw.nnx.parallelize(
        step, method=mw.DataParallel(), cluster=cpu_cluster(2), batch_argnums=(1, 2)
    )
    parallel.plan(nnx.eval_shape(made), X, Y)
    objects = parallel.init(lambda: list(made()))
    assert isinstance(objects, list)
    parallel(tuple(objects), X, Y)
    assert len(parallel.plans) == 1


def test_what_makes_no_such_arguments_is_refused() -> None:
    def init(make: Any, *args: Any, **options: Any) -> None:
        mw.nnx.parallelize(documented, cluster=cpu_cluster(4), **options).init(make, *args)

    told = (
        r"init of step is not given argument 0 \(model\) and argument 1 \(optimizer\), so "
        r".*lambda.* has to return a tuple of 2, and it returns one value; what it does "
    )
    with pytest.raises(TraceError, match=told):
        init(lambda: made()[0], X, Y)
    with pytest.raises(TraceError, match="a tuple of 3, and it returns 2"):
        init(lambda: made(), X)
    with pytest.raises(TraceError, match=r"lacks arguments: 3 of .* \(batch_argnums\) is .*\(y\)"):
        init(lambda: made(), X, batch_argnums=(2, 3))

    def shared() -> Any:
        model, _ = made()
        return model, model

    with pytest.raises(TraceError, match="arguments 0 and 1 of step share a variable"):
        init(shared, X, Y)


def test_a_change_that_would_be_lost_is_refused() -> None:
    parallel = mw.parallelize(documented, batch_argnums=(2, 3), cluster=cpu_cluster(4))
    with pytest.raises(TraceError) as caught:
        parallel.plan(*made(), X, Y)
    text = str(caught.value)
    assert text.startswith(
        "step changes argument 0 (model).drop.rngs.count.value in place and does"
    )
    assert "use mw.nnx.parallelize in place of mw.parallelize" in text


def test_a_change_that_is_returned_is_none() -> None:
    def step(objects: Any, x: Any) -> Any:
        model, optimizer = objects
        grads = nnx.grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, grads)
        return model, optimizer

    parallel = mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(4))
    model, optimizer = parallel(made(), X)
    assert int(optimizer.step[...]) == 1
    assert not np.array_equal(model.last.bias[...], made()[0].last.bias[...])


def test_what_cannot_be_carried_over_is_refused() -> None:
    def with_more(model: Any, batch: Any) -> Any:
        model.extra = nnx.Param(jnp.mean(batch))
        return model(batch)

    with pytest.raises(TraceError, match="with_more adds or removes variables of a module"):
        mw.nnx.parallelize(with_more, cluster=cpu_cluster(4)).plan(made()[0], X)

    def two(first: Any, second: Any, batch: Any) -> Any:
        return first(batch) + second(batch)

    shared = made()[0]
    with pytest.raises(TraceError, match="arguments 0 and 1 of two share a variable"):
        mw.nnx.parallelize(two, cluster=cpu_cluster(4)).plan(shared, shared, X)
    with pytest.raises(TraceError, match=r"names argument 0, .*; say batch_argnums=\(2,\)"):
        mw.nnx.parallelize(two, cluster=cpu_cluster(4), batch_argnums=0).plan(*made(), X)


class Averaging(nnx.Module):
    """Statistics without random numbers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.last = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.norm(x))


def test_a_change_in_a_loss_is_not_lost() -> None:
    plain = mw.nnx.parallelize(step_with(mw.value_and_grad), cluster=cpu_cluster(4))
    model = Averaging(nnx.Rngs(0))
    with pytest.raises(TraceError) as caught:
        plain.plan(model, made()[1], X, Y)
    text = str(caught.value)
    assert text.startswith("loss_fn changes argument 0.norm.mean.value in place")
    assert "use mw.nnx.value_and_grad in place of mw.value_and_grad" in text
    # A random stream counts in whole numbers.
    with pytest.raises(LossError, match=r"have a gradient; use mw\.nnx\.value_and_grad, or keep"):
        plain.plan(*made(), X, Y)


def test_gradients_are_those_of_nnx() -> None:
    def loss(x: Any, model: Any, power: int) -> Any:
        value = jnp.mean(model(x) ** power)
        return value, 2 * value

    bias = nnx.All(nnx.Param, nnx.PathContains("bias"))
    for argnums in (1, nnx.DiffState(1, bias)):
        found, wanted = (
            nnx.jit(of.grad(loss, argnums=argnums, has_aux=True), static_argnums=2)(
                X, made(Normalised)[0], 2
            )
            for of in (mw.nnx, nnx)
        )
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)
    arrays_only = mw.nnx.value_and_grad(lambda w: jnp.sum(w**2))(X)
    np.testing.assert_allclose(arrays_only[1], 2 * X)
