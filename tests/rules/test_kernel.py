"""Opaque kernels: statements that are wrong are refused, right ones are the rule."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.foreign import scale
from meshwise.errors import TraceError
from meshwise.graph.loops import Loop
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import to_graph
from oracle.every_strategy import MESHES, check_run, runs_of
from rule_cases.case import ints


@mw.sharded_kernel(loops="bq,qk->bk", sum="q", flop=lambda x, w: 2 * x.shape[0] * w.size)
def product(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


@mw.sharded_kernel(loops="bd,->bd,b", whole="d")
def scaled(x: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x * s, x.max(-1)


@mw.sharded_kernel(loops="bd -> b", max="d")
def largest(x: jax.Array) -> jax.Array:
    return x.max(-1)


def test_it_is_the_function_outside_of_parallelize() -> None:
    x, w = ints(8, 4), ints(4, 2)
    np.testing.assert_array_equal(product(x, w), x @ w)
    np.testing.assert_array_equal(jax.jit(product)(x, w), x @ w)
    first, second = scaled(x, 2)
    np.testing.assert_array_equal(first, x * 2)
    np.testing.assert_array_equal(second, x.max(-1))
    assert product.__name__ == "product"


@pytest.mark.parametrize("sizes", MESHES)
@pytest.mark.parametrize(
    ("fun", "operands"),
    [
        (product, (ints(8, 16), ints(16, 8))),
        (scaled, (ints(8, 4), np.float32(3))),
        (largest, (ints(8, 16),)),
        (jax.vmap(product, in_axes=(0, None)), (ints(8, 2, 8), ints(8, 4))),
        (jax.vmap(product, in_axes=(None, 2)), (ints(2, 8), ints(8, 4, 8))),
    ],
)
def test_every_strategy_equals_the_function(fun: Any, operands: Any, sizes: Any) -> None:
    (run,) = runs_of(fun, operands, "sharded_kernel")
    assert check_run(run, sizes, limit=100) > 1


def test_the_loops_are_those_stated() -> None:
    (run,) = runs_of(product, (ints(8, 16), ints(16, 4)), "sharded_kernel")
    assert run.rule.loops == (Loop(8), Loop(16, "sum"), Loop(4))
    assert run.row.flop(run.equation) == 2 * 8 * 16 * 4
    (run,) = runs_of(scaled, (ints(8, 4), np.float32(3)), "sharded_kernel")
    assert run.rule.loops == (Loop(8),)
    assert run.rule.operands == (((0,), ()), ())
    assert "whole='d'" in run.rule.whole
    assert run.row.flop(run.equation) == 8 * 4 + 8


def test_vmap_multiplies_the_flop() -> None:
    fun = jax.vmap(product, in_axes=(0, None))
    (run,) = runs_of(fun, (ints(3, 8, 16), ints(16, 4)), "sharded_kernel")
    assert run.row.flop(run.equation) == 3 * 2 * 8 * 16 * 4


def test_the_plan_does_not_know_where_a_kernel_lies_in_memory() -> None:
    (operator,) = to_graph(flatten(jax.make_jaxpr(product)(ints(8, 4), ints(4, 2)))).operators
    assert operator.detail == "kernel=product(bq,qk->bk, sum=q; flop=128.0)"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"loops": "bq,qk"}, "write the operands, `->`, the results"),
        ({"loops": "b1->b1"}, "'1' is no loop; a loop is one letter"),
        ({"loops": "bb->b"}, "'b' stands twice in 'bb'"),
        ({"loops": "bq->b"}, "'q' is in no result; say sum=, max= or min='q'"),
        ({"loops": "b->bq"}, "'q' is in no operand, so a part has no size; say whole='q'"),
        ({"loops": "bq->bq,b"}, "'q' is in one result and not in another"),
        ({"loops": "bq->bq", "sum": "q"}, "'q' is reduced but stands in a result"),
        ({"loops": "bq->b", "sum": "q", "max": "q"}, "'q' is in sum= and in max="),
        ({"loops": "bq->bq", "whole": "k"}, "whole='k' is in no operand and no result"),
    ],
)
def test_a_wrong_statement_is_refused(said: dict[str, str], text: str) -> None:
    with pytest.raises(TraceError, match=re.escape(text)):
        mw.sharded_kernel(lambda x: x, **said)
    with pytest.raises(TraceError, match=re.escape(text)):
        mw.KernelLoops(**said)


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        ((ints(8, 4),), "have 2 operands; the kernel has 1"),
        ((ints(8, 4), ints(4)), "'qk' has 2 dims, the array has the shape (4,)"),
    ],
)
def test_a_statement_that_does_not_fit_is_refused(operands: Any, text: str) -> None:
    kernel = mw.sharded_kernel(lambda *x: x[0], loops="bq,qk->bk", sum="q")
    with pytest.raises(TraceError, match=re.escape(text)):
        kernel(*operands)


def test_a_letter_of_two_sizes_is_refused() -> None:
    kernel = mw.sharded_kernel(lambda x, y: x, loops="bq,bk->bq", whole="k")
    with pytest.raises(TraceError, match="'b' is 8 long in one place and 4 in another"):
        kernel(ints(8, 4), ints(4, 4))


def test_another_number_of_results_is_refused() -> None:
    kernel = mw.sharded_kernel(lambda x: (x, x), loops="bq->bq")
    with pytest.raises(TraceError, match="have 1 results; the kernel has 2"):
        kernel(ints(8, 4))


def test_a_kernel_has_no_derivative_of_its_own() -> None:
    with pytest.raises(TraceError, match=r"product is a sharded_kernel.*jax\.custom_vjp"):
        jax.grad(lambda w: product(ints(8, 4), w).sum())(ints(4, 2))


def test_a_kernel_that_knows_only_whole_operands_is_refused() -> None:
    kernel = mw.sharded_kernel(lambda x: jnp.broadcast_to(x[:1], (8, 4)) + 0, loops="bd->bd")
    (run,) = runs_of(kernel, (ints(8, 4),), "sharded_kernel")
    with pytest.raises(TraceError, match=r"gives result 0 of shape \(8, 4\) for parts .*\(1, 4\)"):
        check_run(run, (8,), limit=100)


def _step(state: Any, batch: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return scale(x * w), None

    out, _ = jax.lax.scan(layer, batch, state)
    return state + out.sum(0), out


def _scale_rule(params: Any, x: Any) -> mw.KernelLoops:
    assert params["shape"] == x.shape

    def local(params: Any, x: Any) -> Any:
        return scale(x)

    return mw.KernelLoops(loops="bd->bd", local=local, flop=lambda x: 3.0 * x.size)


@pytest.mark.parametrize("b", [1, 2])
def test_a_rule_for_a_foreign_primitive(b: int) -> None:
    method = mw.DataParallel()
    step = mw.parallelize(
        _step, method=method, num_microbatches=b, rules={"someone_elses_scale": _scale_rule}
    )
    state, batch = ints(3, 4), ints(16, 4)
    plan = step.plan(state, batch)
    assert not any("someone_elses_scale" in text for text in plan.warnings)
    new, out = step(state, batch)
    want_new, want_out = _step(state, batch)
    np.testing.assert_array_equal(new, want_new)
    np.testing.assert_array_equal(out, want_out)


def test_without_the_rule_it_runs_whole_and_says_so() -> None:
    plan = mw.parallelize(_step, method=mw.DataParallel()).plan(ints(3, 4), ints(16, 4))
    (text,) = (text for text in plan.warnings if "someone_elses_scale" in text)
    assert "has no rule and runs whole" in text
    assert "state its loops, by mw.sharded_kernel or rules=" in text


def test_micro_batches_without_the_rule_are_refused() -> None:
    step = mw.parallelize(_step, method=mw.DataParallel(), num_microbatches=2)
    with pytest.raises(TraceError, match=r"rules=\{'someone_elses_scale': \.\.\.\}"):
        step.plan(ints(3, 4), ints(16, 4))


def test_a_rule_may_have_nothing_to_say() -> None:
    rules = {"someone_elses_scale": lambda params, x: None}
    plan = mw.parallelize(_step, method=mw.DataParallel(), rules=rules).plan(
        ints(3, 4), ints(16, 4)
    )
    assert any("someone_elses_scale" in text for text in plan.warnings)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"someone_elses": _scale_rule}, "no such primitive.*no rule: .*someone_elses_scale"),
        ({"someone_elses_scale": "bd->bd"}, "is a KernelLoops, or a function"),
        ("bd->bd", "rules must map names of primitives to KernelLoops"),
        ({"someone_elses_scale": lambda params, x: "bd->bd"}, "gave 'bd->bd'; it gives a Kern"),
    ],
)
def test_wrong_rules_are_refused(rules: Any, text: str) -> None:
    with pytest.raises(TraceError, match=text):
        mw.parallelize(_step, method=mw.DataParallel(), rules=rules).plan(ints(3, 4), ints(16, 4))
