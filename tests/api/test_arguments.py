"""Arguments of a step: numbers, keywords, static and donated ones, names in errors."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import TraceError

CLUSTER = cpu_cluster(2)
X = jnp.arange(8.0).reshape(4, 2)
STATE = {"w": jnp.ones((2, 2))}
parallelize = partial(mw.parallelize, method=mw.DataParallel(), cluster=CLUSTER)


def step(state: Any, batch: Any) -> Any:
    return {"w": state["w"] + (batch.T @ batch)}, jnp.mean(batch @ state["w"])


def with_rng(state: Any, rng: Any = None, batch: Any = None) -> Any:
    shift = 0.0 if rng is None else rng
    return step(state, batch + shift)


def scaled(state: Any, batch: Any, scale: Any = 1) -> Any:
    assert not isinstance(scale, jax.Array)
    return step(state, batch * scale)


def fresh() -> Any:
    return jax.tree.map(jnp.copy, STATE)


def message(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value)


def test_a_batch_by_keyword_is_batch_data() -> None:
    parallel = parallelize(step, num_microbatches=2)  # an error without batch data
    by_keyword = parallel.plan(STATE, batch=X)
    assert by_keyword is parallel.plan(STATE, X)
    assert by_keyword is parallel.plan(batch=X, state=STATE)


@pytest.mark.parametrize("rng", [None, 0.5])
def test_a_keyword_behind_a_default_is_batch_data(rng: float | None) -> None:
    parallel = parallelize(with_rng, batch_argnums=2, num_microbatches=2)
    others = {} if rng is None else {"rng": rng}
    wanted = with_rng(STATE, rng, X)
    found = parallel(fresh(), batch=X, **others)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, wanted)


def test_calls_that_leave_out_different_defaults_are_not_confused() -> None:
    def two(state: Any, a: Any = 1.0, b: Any = 2.0) -> Any:
        return state + 10 * a + 100 * b

    parallel = parallelize(two, batch_argnums=(), donate_argnums=())
    x = jnp.zeros(2)
    for _ in range(2):
        assert float(parallel(x, a=3.0)[0]) == 230
        assert float(parallel(x, b=3.0)[0]) == 310


def test_a_batch_without_a_position_is_refused() -> None:
    def keyword_only(state: Any, *, batch: Any) -> Any:
        return step(state, batch)

    with pytest.raises(TraceError) as caught:
        parallelize(keyword_only).plan(STATE, batch=X)
    assert message(caught) == (
        "batch_argnums names argument 1 of keyword_only, which the call does not pass by "
        "position; batch came by keyword and has no position, so no batch dim: pass the batch by "
        "position, or say batch_argnums=() if there is no batch data"
    )
    parallelize(keyword_only, batch_argnums=()).plan(STATE, batch=X)


def test_a_negative_batch_argnum_counts_from_the_end_of_the_call() -> None:
    def same(state: Any, batch: Any) -> Any:
        return state + jnp.sum(batch), batch * 2

    first = parallelize(same, batch_argnums=1)
    last = parallelize(same, batch_argnums=-1)
    x, state = jnp.ones((4, 2)), jnp.ones(())
    assert first.plan(state, x).to_json() == last.plan(state, x).to_json()
    for parallel in (first, last):
        parallel(jnp.copy(state), x)
        assert not x.is_deleted()  # batch data is not donated


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"batch_argnums": 2},
            "batch_argnums=2 names argument 2, but step got 2 positional arguments; use numbers "
            "from 0 to 1",
        ),
        (
            {"batch_argnums": (1, -3)},
            "batch_argnums=(1, -3) names argument -3, but step got 2 positional arguments; use "
            "numbers from 0 to 1",
        ),
        (
            {"static_argnums": 7},
            "static_argnums=7 names argument 7, but step got 2 positional arguments; use numbers "
            "from 0 to 1",
        ),
        (
            {"donate_argnums": 5},
            "donate_argnums=5 names argument 5, but step got 2 positional arguments; use numbers "
            "from 0 to 1",
        ),
        (
            {"batch_argnums": (1, -1)},
            "batch_argnums=(1, -1) names argument 1 of step twice; name each batch argument once",
        ),
        (
            {"static_argnums": 1},
            "argument 1 of step is in batch_argnums=(1,) and in static_argnums=(1,), but batch "
            "data is not a compile-time constant; take it out of one of them",
        ),
        (
            {"static_argnums": -2, "donate_argnums": 0},
            "argument 0 of step is in donate_argnums=(0,) and in static_argnums=(-2,), but a "
            "compile-time constant has no buffer to donate; take it out of one of them",
        ),
        (
            {"batch_argnums": (0, 1), "batch_dims": (0,)},
            "batch_dims=(0,) has 1 entries for the 2 arguments of batch_argnums=(0, 1); give one "
            "for each, or one number for all",
        ),
        (
            {"batch_dims": 2},
            "batch_dims says that dim 2 of argument 1 (batch) is the batch, but its shape is "
            "[4, 2]; name one of these dims, from 0 on, or None if it is not batch data",
        ),
        (
            {"batch_dims": "first"},
            "batch_dims of argument 1 (batch) is 'first'; it must be the number of a dim, or None "
            "for what is not batch data",
        ),
        (
            {"batch_argnums": 0, "batch_dims": {"v": 0}},
            "batch_dims={'v': 0} does not fit the tree of argument 0 (state), "
            "PyTreeDef({'w': *}); give one number, or a tree with its keys",
        ),
    ],
)
def test_numbers_are_held_against_the_call(options: dict[str, Any], text: str) -> None:
    parallel = parallelize(step, **options)
    with pytest.raises(TraceError) as caught:
        parallel.plan(STATE, X)
    assert message(caught) == text


def test_a_step_without_batch_data_needs_no_option() -> None:
    plan = parallelize(lambda state: jax.tree.map(lambda x: x + 1, state)).plan(STATE)
    assert plan.num_microbatches == 1


def test_none_in_batch_dims_and_in_the_batch() -> None:
    def two(state: Any, batch: Any) -> Any:
        return step(state, batch["x"] + batch["shift"])

    batch = {"x": X, "shift": jnp.ones((1, 2)), "mask": None}
    dims = {"x": 0, "shift": None, "mask": 0}
    parallelize(two, batch_dims=dims, num_microbatches=2).plan(STATE, batch)
    with pytest.raises(TraceError, match=r"different numbers of rows: .*shift'\] has 1 .* has 4;"):
        parallelize(two, batch_dims=0, num_microbatches=2).plan(STATE, batch)


def test_donated_but_not_returned_is_a_warning() -> None:
    text = (
        "donate_argnums names argument 1 (batch), but the step returns nothing with the same "
        "tree, shapes and dtypes, so its buffers are not reused; return its new value, or take "
        "it out of donate_argnums"
    )
    parallel = parallelize(step, donate_argnums=(0, 1))
    with pytest.warns(UserWarning, match="donate_argnums") as caught:
        plan = parallel.plan(STATE, X)
    assert str(caught[0].message) == f"step: {text}"
    assert plan.warnings[0] == text
    state = fresh()
    parallel(state, X)
    assert state["w"].is_deleted()
    assert not X.is_deleted()


def test_static_arguments_by_position_keyword_and_negative_number() -> None:
    wanted = scaled(STATE, X, 3)
    for options in ({"static_argnums": 2}, {"static_argnums": -1}):
        parallel = parallelize(scaled, **options)
        jax.tree.map(np.testing.assert_allclose, parallel(fresh(), X, 3), wanted)
        jax.tree.map(np.testing.assert_allclose, parallel(fresh(), X, scale=3), wanted)
    parallel = parallelize(scaled, static_argnums=2)
    assert parallel.plan(STATE, X, scale=3) is parallel.plan(STATE, X, 3)
    assert parallel.plan(STATE, X) is not parallel.plan(STATE, X, 3)


def test_equal_statics_of_different_types_are_traced_apart() -> None:
    def kind(state: Any, batch: Any, flag: Any) -> Any:
        return state, jnp.sum(batch) + (100 if flag is True else 0)

    parallel = parallelize(kind, static_argnums=2, donate_argnums=())
    assert float(parallel(STATE, X, 1)[1]) == 28
    assert float(parallel(STATE, X, True)[1]) == 128
    assert float(parallel(STATE, X, 1)[1]) == 28


def test_static_arguments_in_front() -> None:
    def configured(config: str, state: Any, batch: Any) -> Any:
        assert config == "config"
        return step(state, batch)

    parallel = parallelize(configured, static_argnums=0, batch_argnums=2, donate_argnums=1)
    state = fresh()
    found = parallel("config", state, batch=X)
    jax.tree.map(np.testing.assert_allclose, found, step(STATE, X))
    assert state["w"].is_deleted()


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_static_argument_must_be_hashable(by_keyword: bool) -> None:
    parallel = parallelize(scaled, static_argnums=2)
    plan = partial(parallel.plan, scale=[3]) if by_keyword else lambda *a: parallel.plan(*a, [3])
    with pytest.raises(TraceError) as caught:
        plan(STATE, X)
    assert message(caught) == (
        "static argument 2 (scale) of scaled is a list, which cannot be hashed ([3]); pass "
        "something hashable, as a tuple or a frozen dataclass, or take it out of static_argnums"
    )


@pytest.mark.parametrize("run_before", [False, True])
@pytest.mark.parametrize(
    "around",
    [
        lambda f: jax.jit(f)(STATE, X),
        lambda f: jax.grad(lambda s, b: f(s, b)[1])(STATE, X),
        lambda f: jax.vmap(f, in_axes=(None, 0))(STATE, jnp.stack([X, X])),
        lambda f: jax.lax.scan(f, STATE, jnp.stack([X, X])),
    ],
)
def test_a_compiled_step_is_not_transformed(around: Any, run_before: bool) -> None:
    parallel = parallelize(step, donate_argnums=())
    if run_before:
        parallel(STATE, X)
    with pytest.raises(TraceError) as caught:
        around(parallel)
    assert message(caught) == (
        "step is made by parallelize and compiled already, so jax.jit, jax.grad, jax.vmap and "
        "jax.lax.scan cannot go through it; call it with arrays, and put what is around it into "
        "the step itself"
    )


def test_the_users_own_exceptions_pass() -> None:
    class MyError(Exception):
        pass

    def fails(state: Any, batch: Any) -> Any:
        raise MyError("mine")

    with pytest.raises(MyError, match="mine") as caught:
        parallelize(fails)(STATE, X)
    assert caught.traceback[-1].name == "fails"


def branches(state: Any, batch: Any, *, flags: Any = None) -> Any:
    if flags is not None and flags["debug"]:
        return state
    if batch["x"].sum() > 0:
        return state
    return None


@pytest.mark.parametrize("static", [False, True])
def test_jaxs_errors_name_the_users_function_and_argument(static: bool) -> None:
    def with_scale(scale: int, state: Any, batch: Any) -> Any:
        return branches(state, batch)

    if static:
        parallel = parallelize(with_scale, static_argnums=0, batch_argnums=2)
        args: tuple[Any, ...] = (2, STATE, {"x": X})
    else:
        parallel, args = parallelize(branches), (STATE, {"x": X})
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        parallel(*args)
    text = message(caught)
    line = inspect.getsourcelines(with_scale if static else branches)[1]
    name = "with_scale" if static else "branches"
    assert f"while tracing the function {name} at {__file__}:{line} for" in text
    assert "the argument batch['x']" in text


def test_jaxs_errors_name_a_keyword_argument() -> None:
    with pytest.raises(
        jax.errors.TracerBoolConversionError, match=r"the argument flags\['debug'\]"
    ):
        parallelize(branches)(STATE, {"x": X}, flags={"debug": True})


def test_a_step_that_is_a_partial_keeps_its_name() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError, match="the function branches at"):
        parallelize(partial(branches, flags=None))(STATE, {"x": X})


def test_one_function_is_traced_anew_for_each_step() -> None:
    factor = 1.0

    def closed(state: Any, batch: Any) -> Any:
        return state, factor * jnp.sum(batch)

    assert float(parallelize(closed, donate_argnums=())(STATE, X)[1]) == 28
    factor = 2.0
    assert float(parallelize(closed, donate_argnums=())(STATE, X)[1]) == 56


def test_what_is_not_an_array_is_named() -> None:
    def with_options(state: Any, batch: Any, *, mode: Any) -> Any:
        return step(state, batch)

    cases = (
        ((STATE, {"x": ["text"]}), {"mode": 1}, "argument 1 (batch)['x'][0]"),
        ((STATE, X), {"mode": "text"}, "mode"),
    )
    for args, kwargs, where in cases:
        with pytest.raises(TraceError) as caught:
            parallelize(with_options)(*args, **kwargs)
        assert message(caught) == (
            f"{where} of type str is not an array ('text'); pass it through static_argnums, or "
            "make it an array"
        )
