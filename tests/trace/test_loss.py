"""`mw.value_and_grad` and `mw.grad` are drop-in for JAX's: every case runs with both."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from meshwise.errors import LossError
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.trace.loss import loss_and_grad_p
from oracle.problem import run_once

pytestmark = pytest.mark.usefixtures("quick_compile")

Api = Any  # the module `jax` or `mw`: both have value_and_grad and grad
A = jnp.array([1.0, -2.0, 3.0])
B = jnp.array([0.5, 0.25, 2.0])
N = jnp.array([1, 2, 3])
KEY = jax.random.key(0)


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[..., Any]
    args: tuple[Any, ...]
    marked: bool = True


def sum_product(a: Any, b: Any) -> Any:
    return jnp.sum(jnp.sin(a) * b)


def with_aux(a: Any, b: Any) -> Any:
    return sum_product(a, b), {"a": a * 2, "n": 3, "none": None, "text": "t", "ints": N + 1}


def flagged(a: Any, flag: bool, *, power: int, mode: str = "sum") -> Any:
    if flag:
        a = a**power
    return jnp.sum(a) if mode == "sum" else jnp.mean(a)


def looked_up(table: Any, ids: Any) -> Any:
    return jnp.sum(table[ids % 3] ** 2)


def noisy(a: Any, key: Any) -> Any:
    return jnp.sum(a * jax.random.normal(key, a.shape)), key


def of_closure(api: Api, a: Any, b: Any) -> Any:
    return api.value_and_grad(lambda a: sum_product(a, b) + jnp.sum(b))(a)


def of_closure_in_aux(api: Api, a: Any, b: Any) -> Any:
    return api.value_and_grad(lambda a: (sum_product(a, b), b), has_aux=True)(a)


def of_tree(api: Api, a: Any, b: Any) -> Any:
    tree = {"a": a, "none": None, "list": [b, ()]}
    return api.value_and_grad(lambda t, u: sum_product(t["a"], t["list"][0]) + u[0].sum())(
        tree, (b, None)
    )


def second(api: Api, a: Any, b: Any) -> Any:
    return api.grad(lambda a: jnp.sum(api.grad(sum_product)(a, b) ** 2))(a)


def in_scan(api: Api, a: Any, b: Any) -> Any:
    def body(carry: Any, x: Any) -> Any:
        value, gradient = api.value_and_grad(sum_product)(carry, x)
        return carry - 0.1 * gradient, value

    return jax.lax.scan(body, a, jnp.stack([b, 2 * b]))


def under_checkpoint(api: Api, a: Any, b: Any) -> Any:
    inner = jax.checkpoint(lambda a: jnp.sum(api.grad(sum_product)(a, b) ** 2))
    return jax.value_and_grad(inner)(a)


def of_checkpoint(api: Api, a: Any, b: Any) -> Any:
    return api.value_and_grad(jax.checkpoint(sum_product))(a, b)


def for_each_example(api: Api, a: Any, b: Any) -> Any:
    return jax.vmap(api.grad(sum_product, argnums=(1, 0)), in_axes=(None, 0))(
        a, jnp.stack([b, 2 * b])
    )


def in_cond(api: Api, a: Any, b: Any) -> Any:
    return jax.lax.cond(a[0] > 0, api.grad(sum_product), lambda a, b: b, a, b)


def of_rounded(api: Api, dtype: Any, a: Any) -> Any:
    return api.value_and_grad(lambda a: jnp.sum(a * a).astype(dtype))(a)


def aux_through_outer_grad(api: Api, table: Any, ids: Any, key: Any) -> Any:
    def outer(table: Any) -> Any:
        (_, (ids_out, key_out)), gradient = api.value_and_grad(
            lambda t, i, k: (looked_up(t, i), (i + 1, k)), has_aux=True
        )(table, ids, key)
        noise = jax.random.normal(key_out, table.shape)
        return jnp.sum(gradient**2 * noise * ids_out), ids_out

    return jax.grad(jax.checkpoint(outer), has_aux=True)(table)


CASES = (
    Case("plain", lambda m, *x: m.value_and_grad(sum_product)(*x), (A, B)),
    Case("grad", lambda m, *x: m.grad(sum_product)(*x), (A, B)),
    Case("tuple", lambda m, *x: m.value_and_grad(sum_product, (1, 0))(*x), (A, B)),
    Case("list", lambda m, *x: m.value_and_grad(sum_product, [1])(*x), (A, B)),
    Case("one in a tuple", lambda m, *x: m.grad(sum_product, (1,))(*x), (A, B)),
    Case("negative", lambda m, *x: m.value_and_grad(sum_product, -1)(*x), (A, B)),
    Case("negative tuple", lambda m, *x: m.grad(sum_product, (-1, -2))(*x), (A, B)),
    Case("numpy argnum", lambda m, *x: m.grad(sum_product, np.int64(1))(*x), (A, B)),
    Case("keyword", lambda m, a, b: m.value_and_grad(sum_product)(a, b=b), (A, B)),
    Case("aux", lambda m, *x: m.value_and_grad(with_aux, has_aux=True)(*x)[1], (A, B)),
    Case("grad aux", lambda m, *x: m.grad(with_aux, 1, True)(*x)[0], (A, B)),
    Case("flag", lambda m, a: m.grad(flagged)(a, True, power=3), (A,)),
    Case("string", lambda m, a: m.grad(flagged)(a, False, power=3, mode="mean"), (A,)),
    Case("int argument", lambda m, *x: m.value_and_grad(looked_up)(*x), (A, N)),
    Case("key", lambda m, *x: m.value_and_grad(noisy, has_aux=True)(*x), (A, KEY)),
    Case("closure", of_closure, (A, B)),
    Case("closure in aux", of_closure_in_aux, (A, B)),
    Case("tree", of_tree, (A, B)),
    Case("only closure", lambda m, b: m.grad(lambda a: sum_product(a, b))(A), (B,)),
    Case("second", second, (A, B)),
    Case("scan", in_scan, (A, B)),
    Case("under checkpoint", under_checkpoint, (A, B), marked=False),
    Case("of checkpoint", of_checkpoint, (A, B)),
    Case("each example", for_each_example, (A, B), marked=False),
    Case("cond", in_cond, (A, B)),
    Case("float16", lambda m, a: of_rounded(m, jnp.float16, a), (A,)),
    Case("bfloat16", lambda m, a: of_rounded(m, jnp.bfloat16, a), (A,)),
    Case("float16 in", lambda m, a: of_rounded(m, jnp.float32, a), (A.astype(jnp.float16),)),
    Case("weak", lambda m, x: m.value_and_grad(lambda x: x * x)(x), (2.0,)),
    Case("weak in, strong out", lambda m, x: m.value_and_grad(lambda x: x * A[0])(x), (2.0,)),
    Case("weak closure", lambda m, x: m.value_and_grad(lambda a: a * x)(2.0 * x), (2.0,)),
    Case("constant loss", lambda m, x: m.value_and_grad(lambda x: 3.0)(x), (2.0,)),
    Case("complex in", lambda m, z: m.grad(lambda z: jnp.sum(abs(z) ** 2))(z), (A + 1j,)),
    Case("no leaves", lambda m, b: m.value_and_grad(lambda t, b: b.sum())({}, b), (B,), False),
    Case("allow_int", lambda m, *x: m.grad(looked_up, 0, allow_int=True)(*x), (A, N), False),
    Case(
        "holomorphic",
        lambda m, z: m.grad(lambda z: jnp.sum(z * z), holomorphic=True)(z),
        (A + 1j,),
        False,
    ),
    Case("aux through an outer grad", aux_through_outer_grad, (A, N, KEY), marked=False),
)
ALL = [pytest.param(case, id=case.name) for case in CASES]


def comparable(tree: Any) -> list[Any]:
    """Paths, types and values."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, jax.Array):
            weak = leaf.aval.weak_type
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            found.append((path, weak, leaf.dtype, np.asarray(leaf)))
        else:
            found.append((path, False, type(leaf), leaf))
    return found


def assert_same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for ours, theirs in zip(comparable(found), comparable(wanted), strict=True):
        assert ours[:3] == theirs[:3]
        if isinstance(ours[3], np.ndarray):
            tolerance = 1e-2 if ours[2] in (jnp.float16, jnp.bfloat16) else 1e-5
            ours, theirs = (np.asarray(x[3], np.complex128) for x in (ours, theirs))
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def is_marked(jaxpr: Any) -> bool:
    inner = (
        sub
        for eqn in jaxpr.eqns
        for value in eqn.params.values()
        for sub in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(getattr(sub, "jaxpr", sub), jax.extend.core.Jaxpr)
    )
    return any(e.primitive is loss_and_grad_p for e in jaxpr.eqns) or any(
        is_marked(getattr(sub, "jaxpr", sub)) for sub in inner
    )


@pytest.mark.parametrize("case", ALL)
def test_outside_of_a_trace(case: Case) -> None:
    assert_same(case.run(mw, *case.args), case.run(jax, *case.args))


def both(run: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The results with `mw` and with `jax`, from one compilation."""
    return run_once(lambda *xs: (run(mw, *xs), run(jax, *xs)), *args)


@pytest.mark.parametrize("case", ALL)
def test_under_jit(case: Case) -> None:
    assert_same(*both(case.run, *case.args))
    assert is_marked(jax.make_jaxpr(partial(case.run, mw))(*case.args).jaxpr) == case.marked


@pytest.mark.parametrize("case", ALL)
def test_under_vmap(case: Case) -> None:
    args = [jnp.stack([x, x]) for x in map(jnp.asarray, case.args)]

    def run(api: Api, *xs: Any) -> Any:
        inner = partial(case.run, api)
        return jax.vmap(inner)(*xs), jax.vmap(jax.jit(inner))(*xs)

    assert_same(*both(run, *args))


@pytest.mark.parametrize("around", [lambda f: f, jax.checkpoint], ids=["at once", "checkpoint"])
@pytest.mark.parametrize("case", ALL)
def test_under_an_outer_derivative(case: Case, around: Any) -> None:
    def outer(api: Api, x: Any) -> Any:
        scaled = case.args[0] * x
        leaves = jax.tree.leaves(around(partial(case.run, api))(scaled, *case.args[1:]))
        arrays = [y for y in leaves if jnp.issubdtype(jnp.result_type(y), jnp.inexact)]
        return sum(jnp.sum(jnp.abs(jnp.asarray(y, jnp.complex64))) for y in arrays)

    assert_same(*both(lambda m, x: jax.value_and_grad(partial(outer, m))(x), 1.5))


def refused(m: Any, name: str) -> Any:
    """A wrong use under jit."""
    vag = m.value_and_grad
    uses: dict[str, Any] = {
        "vector": lambda a: vag(jnp.sin)(a),
        "int loss": lambda a: vag(lambda a: jnp.sum(a).astype(int))(a),
        "complex loss": lambda a: vag(lambda a: jnp.sum(a) * 1j)(a),
        "tuple loss": lambda a: vag(lambda a: (jnp.sum(a), a))(a),
        "list loss": lambda a: vag(lambda a: [jnp.sum(a)])(a),
        "no loss": lambda a: vag(lambda a: None)(a),
        "text": lambda a: vag(lambda a: "loss")(a),
        "no aux": lambda a: vag(jnp.sum, has_aux=True)(a),
        "three": lambda a: vag(lambda a: (jnp.sum(a), a, a), has_aux=True)(a),
        "vector with aux": lambda a: vag(lambda a: (a, a), has_aux=True)(a),
        "int argument": lambda a: vag(jnp.sum)(N),
        "string argument": lambda a: vag(lambda s, a: jnp.sum(a))("s", a),
        "key argument": lambda a: vag(lambda k: jnp.sum(a))(KEY),
        "argnum too large": lambda a: vag(jnp.sum, argnums=1)(a),
        "argnum too small": lambda a: vag(jnp.sum, argnums=-2)(a),
        "argnums too large": lambda a: vag(sum_product, argnums=(0, 2))(a, a),
        "argnum of a keyword": lambda a: vag(sum_product, argnums=1)(a, b=a),
        "no arguments": lambda a: vag(lambda: jnp.sum(a))(),
        "not holomorphic": lambda a: vag(jnp.sum, holomorphic=True)(a),
        "argnums not a number": lambda a: vag(jnp.sum, argnums="a")(a),
        "not a function": lambda a: vag(3)(a),
    }
    return uses[name]


OUR_OWN = {
    "vector": "sin returns float32[3]",
    "int loss": "<lambda> returns int32[]",
    "complex loss": "<lambda> returns complex64[]",
    "vector with aux": "<lambda> returns float32[3]",
}
NO_SCALAR = ", but a loss must be a real scalar; reduce it, for example with jnp.mean"
WHOLE_NUMBERS = (
    "sum is differentiated with respect to int32[3], but only real and complex numbers have a "
    "gradient; keep whole numbers in another argument, or choose the others with argnums"
)
OUR_TEXTS = {name: text + NO_SCALAR for name, text in OUR_OWN.items()}
OUR_TEXTS["int argument"] = WHOLE_NUMBERS


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "name",
    [
        *("vector", "int loss", "complex loss", "tuple loss", "list loss", "no loss", "text"),
        *("no aux", "three", "vector with aux", "int argument", "string argument"),
        *("key argument", "argnum too large", "argnum too small", "argnums too large"),
        *("argnum of a keyword", "no arguments", "not holomorphic", "argnums not a number"),
        "not a function",
    ],
)
def test_errors_are_those_of_jax(name: str, around: Any) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # whatever JAX raises
        around(refused(jax, name))(A)
    with pytest.raises(theirs.type) as ours:
        around(refused(mw, name))(A)
    if around is jax.jit and name in OUR_TEXTS:
        assert isinstance(ours.value, LossError)
        assert str(ours.value) == OUR_TEXTS[name]
        return
    # Tracers stand in some messages with their address.
    assert (
        str(ours.value).partition(" with value ")[0]
        == (str(theirs.value).partition(" with value ")[0])
    )


def test_the_users_own_exceptions_pass() -> None:
    def fails(a: Any) -> Any:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine") as caught:
        jax.jit(mw.grad(fails))(A)
    assert caught.traceback[-1].name == "fails"


def test_jaxs_errors_name_the_users_loss_and_its_argument() -> None:
    def branches(params: Any, flag: bool, batch: Any) -> Any:
        return params["w"] if flag and batch["x"].sum() > 0 else 0.0

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jax.jit(lambda p, b: mw.grad(branches)(p, True, b))({"w": A}, {"x": B})
    line = inspect.getsourcelines(branches)[1]
    assert f"the function branches at {__file__}:{line} for" in str(caught.value)
    assert "the argument batch['x']" in str(caught.value)


def test_a_loss_with_the_name_of_a_mapped_axis() -> None:
    def loss(a: Any) -> Any:
        return jnp.sum(jax.lax.pmean(a, "i") ** 2)

    args = jnp.stack([A, B])
    for around in (lambda f: f, jax.jit):
        found, wanted = (
            jax.vmap(around(m.value_and_grad(loss)), axis_name="i")(args) for m in (mw, jax)
        )
        assert_same(found, wanted)


def test_inside_shard_map() -> None:
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("i")

    def run(api: Api, a: Any) -> Any:
        body = jax.shard_map(
            api.grad(lambda a: jnp.sum(a**2)), mesh=mesh, in_specs=spec, out_specs=spec
        )
        return jax.jit(body)(a)

    assert_same(run(mw, jnp.arange(4.0)), run(jax, jnp.arange(4.0)))


def test_side_effects_of_a_loss_happen_once() -> None:
    seen: list[float] = []

    def loss(a: Any) -> Any:
        jax.debug.callback(lambda x: seen.append(float(x)), a[0])
        return jnp.sum(a)

    jax.jit(mw.grad(loss))(A).block_until_ready()
    jax.effects_barrier()
    assert seen == [1.0]


def test_a_loss_outside_of_a_trace_runs_once() -> None:
    calls: list[int] = []

    def loss(a: Any) -> Any:
        calls.append(1)
        return jnp.sum(a)

    mw.grad(loss)(A)
    assert len(calls) == 1


def test_the_wrapped_function_keeps_its_name() -> None:
    assert mw.grad(sum_product).__name__ == "sum_product"
    assert mw.value_and_grad(sum_product).__wrapped__ is sum_product  # type: ignore[attr-defined]


def test_under_parallelize_with_flags_keys_and_aux() -> None:
    def step(state: Any, batch: Any, key: Any) -> Any:
        def loss(params: Any, batch: Any, key: Any, *, train: bool) -> Any:
            x = batch + (0.1 * jax.random.normal(key, batch.shape) if train else 0.0)
            return jnp.mean((x @ params) ** 2), {"count": 1, "key": key}

        (value, aux), gradient = mw.value_and_grad(loss, has_aux=True)(
            state, batch, key, train=True
        )
        return state - 0.1 * gradient, value * aux["count"]

    from meshwise.cluster.cpu import cpu_cluster

    parallel = mw.parallelize(
        step, method=mw.DataParallel(), cluster=cpu_cluster(2), num_microbatches=2
    )
    batch = jnp.arange(12.0).reshape(4, 3)
    wanted = jax.jit(step)(A, batch, KEY)
    assert_same(parallel(jnp.copy(A), batch, KEY), wanted)


def the_loss(fun: Callable[..., Any], *args: Any) -> Any:
    """The equation of the only loss of a function that binds it at top level."""
    equations = jax.make_jaxpr(fun)(*args).jaxpr.eqns
    (eqn,) = [e for e in equations if e.primitive is loss_and_grad_p]
    return eqn


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny", "moe-tiny", "wide-resnet-tiny"])
def test_gradients_of_a_plain_loss_have_types_without_being_made(name: str) -> None:
    step, state, batch = model_step(model_config(name), 4).abstract
    eqn = the_loss(step, state, batch)
    expand = eqn.params["expand"]
    assert expand.cache_info().misses == 0
    wanted = expand().out_avals
    assert [v.aval for v in eqn.outvars] == wanted
    assert [v.aval.weak_type for v in eqn.outvars] == [a.weak_type for a in wanted]


def test_a_loss_with_a_gradient_of_its_own_is_differentiated_at_once() -> None:
    @jax.custom_vjp
    def odd(x: Any) -> Any:
        return jnp.sum(x)

    odd.defvjp(lambda x: (jnp.sum(x), x), lambda x, g: (jnp.zeros_like(x) + g,))
    eqn = the_loss(mw.grad(lambda x: odd(x)), A)
    assert eqn.params["expand"].cache_info().misses == 1
