"""Steps in stages whose state, results or loss are out of the ordinary."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwise as mw
from doubles.layered_steps import Step, assert_equal, layering
from doubles.planned_stages import planned_stages
from meshwise.runtime.pipeline.interpreter import Pipeline
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.schedules.registry import make_schedule
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")

WIDTH = 4
Params = dict[str, Any]


def moved(params: Params, grads: Params) -> Params:
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)


def net(params: Params, x: Any) -> Any:
    for w in params.values():
        x = jnp.tanh(x @ w)
    return x


def error(params: Params, batch: Any) -> Any:
    return jnp.mean((net(params, batch["x"]) - batch["y"]) ** 2)


def made(
    update: Callable[[Params, Params, Any, Params], Any],
    loss: Callable[[Params, Any], Any] = error,
    *,
    has_aux: bool = False,
) -> tuple[Step, tuple[Any, ...]]:
    def step(state: Any, batch: Any) -> Any:
        params, old = state
        value, grads = mw.value_and_grad(loss, has_aux=has_aux)(params, batch)
        return update(params, old, value, grads)

    rng = np.random.default_rng(0)
    params = {f"w{i}": jnp.asarray(rng.normal(size=(WIDTH, WIDTH))) for i in range(2)}
    data = {k: jnp.asarray(rng.normal(size=(4, WIDTH))) for k in "xy"}
    return step, ((params, jax.tree.map(jnp.copy, params)), data)


def in_stages(step: Step, args: Any, *, num_stages: int) -> Pipeline:
    layers = layering(step, args, 2)
    shapes: Any = [(0, 0, (2,), "none"), (1, 1, (1,), "none")]
    if num_stages == 1:
        shapes = [(0, 1, (2,), "none")]
    order = make_schedule("1f1b", num_stages=num_stages, num_microbatches=2)
    return make_pipeline(layers, planned_stages(layers, 2, shapes), order)


UPDATES: dict[str, tuple[Callable[..., Any], int]] = {
    # The update of one layer overwrites what that of the next one on its devices reads.
    "reads parameters of all layers": (
        lambda p, old, v, g: (
            (jax.tree.map(lambda a, b: a - 0.1 * b / optax.tree.norm(p), p, g), old),
            v,
        ),
        1,
    ),
    "keeps the old parameters": (lambda p, old, v, g: ((moved(p, g), p), v, old), 2),
    "keeps one frozen": (lambda p, old, v, g: (({**moved(p, g), "w0": p["w0"]}, old), v), 2),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_that_of_one_device(name: str) -> None:
    update, num_stages = UPDATES[name]
    step, args = made(update)
    expected = jax.tree.map(np.array, jax.tree.leaves(quick_jit(step)(*args)))
    pipeline = in_stages(step, args, num_stages=num_stages)
    given = jax.tree.leaves(args)
    found = pipeline.run(given)
    assert_equal(found, expected)
    # They were elsewhere, so nothing of them was overwritten.
    assert not any(x.is_deleted() for x in given)
    found = pipeline.run([np.asarray(x) for x in given])
    assert_equal(found, expected)
    assert all(isinstance(x, jax.Array) for x in found)


def test_an_array_may_be_there_twice() -> None:
    step, args = made(lambda p, old, v, g: ((moved(p, g), moved(old, g)), v))
    pipeline = in_stages(step, args, num_stages=1)
    (params, old), loss = jax.tree.unflatten(
        jax.tree.structure(jax.eval_shape(step, *args)), pipeline.run(jax.tree.leaves(args))
    )
    assert float(loss) > 0
    params = {"w0": params["w0"], "w1": params["w0"]}
    again = ((params, old), args[1])
    expected = jax.tree.map(np.array, jax.tree.leaves(quick_jit(step)(*again)))
    assert_equal(pipeline.run(jax.tree.leaves(again)), expected)


def test_a_parameter_that_nothing_reads_has_a_gradient_of_zero() -> None:
    def loss(params: Params, batch: Any) -> Any:
        return error({"w0": params["w0"], "w1": jnp.eye(WIDTH)}, batch)

    step, args = made(lambda p, old, v, g: ((moved(p, g), g), v), loss)
    expected = jax.tree.map(np.array, jax.tree.leaves(quick_jit(step)(*args)))
    found = in_stages(step, args, num_stages=2).run(jax.tree.leaves(args))
    assert_equal(found, expected)


def stopped(params: Params, batch: Any) -> Any:
    hidden = jax.lax.stop_gradient(net(params, net(params, batch["x"])))
    return jnp.mean((hidden * params["w1"][0] - batch["y"]) ** 2)


def shifted(params: Params, batch: Any) -> Any:
    """The largest value goes over the cut beside the row; the last layer's gradient is whole."""
    first = batch["x"] @ params["w0"]
    top = jax.lax.stop_gradient(jnp.max(first, axis=1, keepdims=True))
    return jnp.mean(jnp.exp(first - top) @ params["w1"]) + jnp.mean(top * params["w1"][0])


def masked(params: Params, batch: Any) -> Any:
    """It divides by a number that follows from all rows."""
    wanted = jnp.where(batch["y"] > 0, 1.0, 0.0)
    return jnp.sum(wanted * net(params, batch["x"]) ** 2) / jnp.sum(wanted)


LOSSES = {"no gradient over a cut": stopped, "forward only": shifted, "mask": masked}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_with_unusual_gradients_is_that_of_one_device(name: str) -> None:
    step, args = made(lambda p, old, v, g: ((moved(p, g), g), v), LOSSES[name])
    expected = jax.tree.map(np.array, jax.tree.leaves(quick_jit(step)(*args)))
    assert_equal(in_stages(step, args, num_stages=2).run(jax.tree.leaves(args)), expected)


def of_a_target(params: Params, batch: Any) -> Any:
    """What parameters give outside of the loss, as in Q-learning."""
    goal = net(params, batch["y"])
    return mw.value_and_grad(lambda p: jnp.mean((net(p, batch["x"]) - goal) ** 2))(params)


def of_a_ratio(params: Params, batch: Any) -> Any:
    """Parameters that the loss also reads by another way, as in proximal policy optimisation."""

    def loss(p: Params) -> Any:
        return jnp.mean(jnp.exp(net(p, batch["x"]) - net(params, batch["x"])) * batch["y"])

    return mw.value_and_grad(loss)(params)


def of_one_that_follows(params: Params, batch: Any) -> Any:
    """Two sets, the second made of the first: its gradient is not the first one's."""
    halves = jax.tree.map(lambda w: 0.5 * w, params)

    def loss(p: Params, h: Params) -> Any:
        return error(p, batch) + error(h, batch)

    value, (grads, others) = mw.value_and_grad(loss, argnums=(0, 1))(params, halves)
    return value, jax.tree.map(lambda g, o: g + 2 * o, grads, others)


def of_the_same_twice(params: Params, batch: Any) -> Any:
    def loss(p: Params, q: Params) -> Any:
        return jnp.mean((net(p, batch["x"]) - 2 * net(q, batch["y"])) ** 2)

    value, (grads, others) = mw.value_and_grad(loss, argnums=(0, 1))(params, params)
    return value, jax.tree.map(lambda g, o: g + 3 * o, grads, others)


@pytest.mark.parametrize(
    "differentiated", [of_a_target, of_a_ratio, of_one_that_follows, of_the_same_twice]
)
def test_a_gradient_goes_only_to_what_the_loss_is_differentiated_for(differentiated: Any) -> None:
    def step(params: Params, batch: Any) -> Any:
        value, grads = differentiated(params, batch)
        return moved(params, grads), value

    _, ((params, _), data) = made(lambda p, old, v, g: ((p, old), v))
    args = (params, data)
    expected = jax.tree.map(np.array, jax.tree.leaves(quick_jit(step)(*args)))
    assert_equal(in_stages(step, args, num_stages=2).run(jax.tree.leaves(args)), expected)


def test_what_goes_forward_only_has_no_cotangent_on_either_side() -> None:
    step, args = made(lambda p, old, v, g: ((moved(p, g), g), v), shifted)
    layers = layering(step, args, 2)
    sides = layers.graph(0, 0, 2).leaving, layers.graph(1, 1, 2).entering
    for crossings in sides:
        assert sorted(c.cotangent >= 0 for c in crossings) == [False, True]


def test_auxiliary_results_that_no_layer_makes_are_those_of_one_device() -> None:
    """Constants, parameters, what follows from the batch alone; one is used by an update."""

    def loss(params: Params, batch: Any) -> Any:
        found = {
            "constant": jnp.ones(3),
            "argument": params["w0"],
            "rows": batch["x"] > 0,
            "count": jnp.sum(batch["y"] > 0),
            "norm": jnp.sum(params["w1"] ** 2),
            "mean": jnp.mean(net(params, batch["x"])),
        }
        return error(params, batch), found

    step, args = made(
        lambda p, old, v, g: ((jax.tree.map(lambda a, b: a - b / v[1]["count"], p, g), old), v),
        loss,
        has_aux=True,
    )
    expected = jax.tree.map(np.array, jax.tree.leaves(quick_jit(step)(*args)))
    assert_equal(in_stages(step, args, num_stages=2).run(jax.tree.leaves(args)), expected)


def test_auxiliary_results_with_rows_are_those_of_one_device() -> None:
    """One goes over the cut too, one has the batch elsewhere, one is not read by the loss.

    The last one is the loss once more.
    """

    def loss(params: Params, batch: Any) -> Any:
        first = jnp.tanh(batch["x"] @ params["w0"])
        last = jnp.tanh(first @ params["w1"])
        value = jnp.mean((last - batch["y"]) ** 2)
        return value, (first, last.T, jnp.argmax(first, axis=1), value)

    step, args = made(lambda p, old, v, g: ((moved(p, g), old), v), loss, has_aux=True)
    expected = jax.tree.map(np.array, jax.tree.leaves(quick_jit(step)(*args)))
    assert_equal(in_stages(step, args, num_stages=2).run(jax.tree.leaves(args)), expected)


def test_a_failure_shows_the_program_around_it() -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("out of memory")

    step, args = made(lambda p, old, v, g: ((moved(p, g), old), v))
    pipeline = in_stages(step, args, num_stages=2)
    broken = replace(
        pipeline,
        executables=tuple(
            replace(e, executable=failing) if e.name == "backward of layer 1" else e
            for e in pipeline.executables
        ),
    )
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        broken.run(jax.tree.leaves(args))
    (note,) = caught.value.__notes__
    first, *shown = note.splitlines()
    assert re.fullmatch(r"while mesh 1 ran instruction \d+:", first)
    (line,) = [line for line in shown if line.startswith(">")]
    assert '"backward of layer 1" @0' in line
    assert len(shown) == 7


def test_state_that_shares_memory_is_overwritten_once() -> None:
    def update(params: Params, old: Params, value: Any, grads: Params) -> Any:
        new = moved(params, grads)
        return (new, jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new)), value

    step, ((params, _), batch) = made(update)
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    staged = mw.parallelize(
        step, method=mw.Auto(stages=2, schedule="1f1b"), cluster=cluster, num_microbatches=2
    )
    state = staged.init(lambda p: (p, jax.tree.map(jnp.copy, p)), params, batch)
    # `jax.device_put` gives another array on the same memory.
    homes = jax.tree.map(lambda x: x.sharding, state)
    state = jax.tree.map(jax.device_put, (params, params), homes)
    expected: Any = (params, params)
    for _ in range(2):
        state, loss = staged(state, batch)
        expected, expected_loss = quick_jit(step)(expected, batch)
        assert_equal(jax.tree.leaves((state, loss)), jax.tree.leaves((expected, expected_loss)))


def test_an_argument_that_only_the_first_join_of_the_update_reads() -> None:
    def update(params: Params, old: Params, value: Any, grads: Params) -> Any:
        norm = optax.tree.norm(grads)
        clipped = jax.tree.map(lambda g: g / norm, grads)
        again = optax.tree.norm(jax.tree.map(jnp.tanh, clipped))
        return (jax.tree.map(lambda p, g: p - 0.1 * g / again, params, clipped), old), value, norm

    base, (state, batch) = made(update)

    def step(state: Any, batch: Any, other: Any) -> Any:
        state, value, norm = base(state, batch)
        return state, value, norm * jnp.sum(other)

    args = (state, batch, jnp.arange(3.0))
    layers = layering(step, args, 4)
    assert layers.update.num_phases == 2
    shapes: Any = [(0, 0, (2,), "none"), (1, 3, (1,), "none")]
    order = make_schedule("1f1b", num_stages=2, num_microbatches=2)
    expected = jax.tree.leaves(quick_jit(step)(*args))
    found = make_pipeline(layers, planned_stages(layers, 2, shapes), order).run(
        jax.tree.leaves(args)
    )
    assert_equal(found, expected)
