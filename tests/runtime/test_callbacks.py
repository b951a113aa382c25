"""Callbacks of a step: called once for all devices, with whole values, in order if it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback

import meshwise as mw
from meshwise.errors import TraceError

WEIGHTS = jnp.linspace(-1.0, 1.0, 32).reshape(8, 4)
ROWS = jnp.arange(128.0).reshape(16, 8) / 100
SEEN: list[Any] = []


def note(*values: Any) -> None:
    SEEN.append([np.asarray(value).round(3).tolist() for value in values])


def many_in_order(w: Any, x: Any) -> Any:
    y = x @ w
    for i in range(12):
        jax.debug.callback(note, i, ordered=True)
        jax.debug.callback(note, y.sum() * i, ordered=True)
    return w - y.mean(), y.sum()


def effects_of_io(w: Any, x: Any) -> Any:
    y = x @ w
    for i in range(6):
        io_callback(note, None, i, y, ordered=True)
    return w - y.mean(), y.sum()


def in_a_loop(w: Any, x: Any) -> Any:
    def body(count: Any, row: Any) -> Any:
        jax.debug.callback(note, count, row @ w)
        return count + 1, (row @ w).sum()

    count, sums = lax.scan(body, 0, x)
    return w - sums.mean(), count


def in_a_loop_that_returns_nothing(w: Any, x: Any) -> Any:
    lax.scan(lambda _, row: (None, jax.debug.callback(note, row.sum())), None, x)
    return w - (x @ w).mean(), x.sum()


def in_a_while(w: Any, x: Any) -> Any:
    def body(carry: Any) -> Any:
        jax.debug.callback(note, carry[0])
        return carry[0] + 1, carry[1] - (x @ carry[1]).mean()

    count, w = lax.while_loop(lambda carry: carry[0] < 3, body, (0, w))
    return w, count


def in_a_branch(w: Any, x: Any) -> Any:
    lax.cond(x.sum() > 0, lambda: jax.debug.callback(note, 1), lambda: None)
    return w - (x @ w).mean(), x.sum()


def in_a_loss(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        y = jnp.tanh(x @ w)
        jax.debug.callback(note, y.sum(), len(y))
        return (y**2).mean()

    value, grads = mw.value_and_grad(loss)(w)
    jax.debug.callback(note, value)
    return w - grads, value


def in_remat(w: Any, x: Any) -> Any:
    @jax.checkpoint
    def loss(w: Any) -> Any:
        y = jnp.tanh(x @ w)
        jax.debug.callback(note, y.sum())
        return (y**2).mean()

    value, grads = jax.value_and_grad(loss)(w)
    return w - grads, value


def of_mapped_rows(w: Any, x: Any) -> Any:
    def row(r: Any) -> Any:
        jax.debug.callback(note, r.sum())
        return r @ w

    y = jax.vmap(row)(x)
    return w - y.mean(), y.sum()


def of_a_constant(w: Any, x: Any) -> Any:
    jax.debug.callback(note, 7)
    return w - (x @ w).mean(), x.sum()


STEPS = (
    many_in_order,
    effects_of_io,
    in_a_loop,
    in_a_loop_that_returns_nothing,
    in_a_while,
    in_a_branch,
    in_a_loss,
    in_remat,
    of_mapped_rows,
    of_a_constant,
)


def _run(step: Callable[..., Any]) -> tuple[Any, list[Any]]:
    SEEN.clear()
    results = jax.block_until_ready(step(WEIGHTS, ROWS))
    jax.effects_barrier()
    return results, list(SEEN)


def _planned(step: Callable[..., Any], **asked: Any) -> Any:
    return mw.parallelize(step, batch_argnums=(1,), donate_argnums=(), **asked)


@pytest.mark.parametrize("mesh", [(8,), (2, 4)])
@pytest.mark.parametrize("step", STEPS)
def test_a_callback_is_called_as_on_one_device(step: Any, mesh: tuple[int, ...]) -> None:
    wanted, calls = _run(jax.jit(step))
    found, seen = _run(_planned(step, method=mw.IntraOp(mesh)))
    assert calls
    # Only ordered ones have an order.
    assert (
        seen == calls if step in (many_in_order, effects_of_io) else sorted(seen) == sorted(calls)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)


@pytest.mark.parametrize("step", [many_in_order, in_a_branch, in_a_loss, in_remat, of_a_constant])
def test_with_micro_batches_it_sees_the_whole_batch(step: Any) -> None:
    _, calls = _run(jax.jit(step))
    _, seen = _run(_planned(step, method=mw.IntraOp((8,)), num_microbatches=4))
    assert sorted(seen) == sorted(calls)


def test_the_text_of_a_print_comes_once(capfd: pytest.CaptureFixture[str]) -> None:
    def step(w: Any, x: Any) -> Any:
        y = x @ w
        jax.debug.print("sum {s:.2f}, shape {}", y.shape[0], s=y.sum())
        return w - y.mean(), y.sum()

    _run(_planned(step, method=mw.IntraOp((8,))))
    assert capfd.readouterr().out.count("sum ") == 1


def test_a_function_without_effect_gives_what_it_gives_on_one_device() -> None:
    def step(w: Any, x: Any) -> Any:
        y = x @ w
        like = jax.ShapeDtypeStruct(y.shape, y.dtype)
        z = jax.pure_callback(lambda v: np.cumsum(v, 0), like, y, vmap_method="sequential")
        return w - z.mean(), z.sum()

    wanted, _ = _run(jax.jit(step))
    found, _ = _run(_planned(step, method=mw.IntraOp((2, 4))))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)


def test_layers_of_a_stage_call_functions_of_their_own() -> None:
    def scaled(w: Any, scale: float) -> Any:
        like = jax.ShapeDtypeStruct(w.shape, w.dtype)
        return jax.pure_callback(lambda v: scale * np.asarray(v), like, w)

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for n, w in enumerate(weights):
                y = jnp.tanh(y @ (w * scaled(lax.stop_gradient(w), n + 1.0)))
            return jnp.mean(y**2)

        value, grads = mw.value_and_grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    weights = [jax.random.normal(jax.random.key(n), (8, 8)) / 3 for n in range(4)]
    planned = _planned(step, method=mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2)
    found, wanted = planned(weights, ROWS), jax.jit(step)(weights, ROWS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, wanted)


def test_checks_of_checkify_are_made() -> None:
    def checked(w: Any, x: Any) -> Any:
        checkify.check(jnp.all(x < 1), "a row has {n}", n=x.max())
        return w - (x @ w).mean()

    def step(w: Any, x: Any) -> Any:
        error, w = checkify.checkify(checked)(w, x)
        return w, error

    _, error = _planned(step, method=mw.IntraOp((8,)))(WEIGHTS, ROWS)
    assert "a row has 1.2" in str(error.get())


def of_the_host(w: Any, x: Any) -> Any:
    """A step that is another function in each trace."""

    def doubled(y: Any) -> Any:
        return 2 * y

    jax.debug.callback(lambda *values: note(*values), x.sum())
    y = jax.pure_callback(lambda y: doubled(y), x, x)
    return w - (y @ w).mean(), x.sum()


def test_a_plan_of_a_step_with_callbacks_is_for_the_step_of_the_next_process() -> None:
    kept = mw.Plan.from_json(
        _planned(of_the_host, method=mw.IntraOp((8,))).plan(WEIGHTS, ROWS).to_json()
    )
    wanted, calls = _run(jax.jit(of_the_host))
    found, seen = _run(_planned(of_the_host, method=mw.Replay(kept)))
    assert seen == calls
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)


def with_results(w: Any, x: Any) -> Any:
    one = io_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32))
    return w - one, x.sum()


def ordered_in_a_loop(w: Any, x: Any) -> Any:
    lax.scan(lambda n, r: (n + 1, jax.debug.callback(note, n, ordered=True)), 0, x)
    return w - (x @ w).mean(), x.sum()


@pytest.mark.parametrize(
    ("step", "method", "text"),
    [
        (
            with_results,
            mw.IntraOp(),
            r"io_callback at test_callbacks.py:\d+:\d+ \(with_results\) re",
        ),
        (ordered_in_a_loop, mw.IntraOp(), "inside a loop or a branch, where it has no order"),
        (
            in_a_loss,
            mw.Auto(stages=2, schedule="1f1b"),
            "stages run no such calls; take it out of the step",
        ),
    ],
)
def test_what_cannot_be_called_once_is_refused(step: Any, method: Any, text: str) -> None:
    with pytest.raises(TraceError, match=text):
        _planned(step, method=method).plan(WEIGHTS, ROWS)
