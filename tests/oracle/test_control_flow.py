"""Branches and loops of every kind against one device (I1), and their collectives (I2)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from benchmarks.fidelity import compiled_collective_bytes, planned_collective_bytes
from jax import lax

import meshwise as mw
from doubles.few import few
from doubles.random_decision import random_decision
from meshwise.cluster.cpu import cpu_cluster
from meshwise.graph.layout import replicated
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.counts.flop import device_flop
from meshwise.plan.counts.walk import visits
from meshwise.runtime.compile import compile_decided
from meshwise.runtime.hlo.collectives import hlo_collectives
from meshwise.runtime.hlo.flop import hlo_dense_flop
from meshwise.spmd.program import concrete_mesh
from meshwise.trace.step import StepSignature, TracedStep, open_step, trace_step
from oracle.compare import assert_same_x64
from oracle.control_flow_problems import (
    CONTROL_FLOW,
    branch_over_rows,
    branches_and_loops_in_loops,
    loop_of_each_row,
    loop_until_it_converges,
)
from oracle.parallel import run_method, run_random
from oracle.problem import Problem, reference

oracle = pytest.mark.usefixtures("x64", "quick_steps")
each_problem = pytest.mark.parametrize("make", CONTROL_FLOW, ids=lambda f: f.__name__)


@oracle
@each_problem
def test_means_the_same(make: Callable[[], Problem]) -> None:
    problem = make()
    assert_same_x64(reference(problem), run_method(problem, mw.IntraOp((2, 4)), 2))


@oracle
@pytest.mark.parametrize(
    "make", [branch_over_rows, loop_until_it_converges], ids=lambda f: f.__name__
)
def test_means_the_same_under_a_random_decision(make: Callable[[], Problem]) -> None:
    problem = make()
    assert_same_x64(reference(problem), run_random(problem, (2, 2, 2), 3))


@oracle
def test_a_loop_of_each_row_ends_where_its_row_does() -> None:
    problem = loop_of_each_row()
    want = reference(problem)
    assert_same_x64(want, run_method(problem, mw.IntraOp((2, 4))))
    assert_same_x64(want, run_random(problem, (2, 4), 0))


@oracle
@pytest.mark.slow
@each_problem
def test_means_the_same_in_more_ways(make: Callable[[], Problem]) -> None:
    problem = make()
    want = reference(problem)
    for shape, b in (((8,), 1), ((2, 2, 2), 4)):
        assert_same_x64(want, run_method(problem, mw.IntraOp(shape), b))
    for method in (mw.DataParallel(), mw.Zero2(), mw.Zero3()):
        assert_same_x64(want, run_method(problem, method, 1))
    for seed, (shape, b) in enumerate((((8,), 2), ((2, 4), 4), ((2, 2, 2), 1))):
        assert_same_x64(want, run_random(problem, shape, seed, b))


# -- collectives and FLOP -------------------------------------------------------------------------


def _branch(params: Any, x: Any, flag: Any) -> Any:
    h = lax.cond(
        flag > 0,
        lambda w, x: jnp.tanh(x @ w[0]) @ w[1],
        lambda w, x: jnp.sin(x) @ (w[0] @ w[1]),
        params,
        x,
    )
    return [w * 0.5 for w in params], jnp.sum(h**2)


def _known_loop(params: Any, x: Any, flag: Any) -> Any:
    def body(carry: Any) -> Any:
        i, h = carry
        return i + 2, jnp.tanh(h @ params[0]) @ params[1]

    _, h = lax.while_loop(lambda carry: carry[0] < 6, body, (jnp.int32(1), x))
    return [w * 0.5 for w in params], jnp.sum(h**2) + flag


def _unknown_loop(params: Any, x: Any, flag: Any) -> Any:
    def goes_on(h: Any) -> Any:
        return jnp.max(jnp.abs(h)) > 0.1

    h = lax.while_loop(goes_on, lambda h: jnp.tanh(h @ params[0]) @ params[1] * 0.1, x)
    return [w * 0.5 for w in params], jnp.sum(h**2) + flag


def _traced(step: Callable[..., Any]) -> TracedStep:
    args = (
        [jax.ShapeDtypeStruct((32, 64), jnp.float32), jax.ShapeDtypeStruct((64, 32), jnp.float32)],
        jax.ShapeDtypeStruct((16, 32), jnp.float32),
        jax.ShapeDtypeStruct((), jnp.float32),
    )
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    return trace_step(open_step(step, args, {}, signature), num_microbatches=1, num_devices=8)


@pytest.mark.parametrize("sizes", few([(8,), (2, 4)], [(2, 4)]), ids=str)
@pytest.mark.parametrize("step", [_branch, _known_loop, _unknown_loop], ids=lambda f: f.__name__)
def test_collectives_and_flop_are_those_of_the_compiled_program(
    step: Callable[..., Any], sizes: tuple[int, ...]
) -> None:
    traced = _traced(step)
    logical = cpu_cluster(8).mesh(sizes)
    found = 0
    for seed in range(2):
        decision = random_decision(traced.graph, logical, random.Random(seed))
        mesh = concrete_mesh(logical, jax.devices()[:8])
        text = compile_decided(traced, decision, logical, mesh).as_text()
        planned = collectives(traced.graph, decision, logical)
        found += sum(v.times > 1 or bool(v.operator.bodies) for v in visits(traced.graph, decision))
        # A counter that a decision splits in terms is known to the plan, not to XLA.
        trips = 3 if step is _known_loop else 1
        compiled = hlo_collectives(text, logical.sizes, unknown_trip_count=trips)
        assert planned_collective_bytes(
            planned, logical.names, logical.sizes
        ) == compiled_collective_bytes(compiled)
        flop = hlo_dense_flop(text, unknown_trip_count=trips)
        assert device_flop(traced.graph, decision, logical) == pytest.approx(flop, rel=0.01)
    assert found, "nothing to compare"


# -- plans ----------------------------------------------------------------------------------------


def _plan(problem: Problem, method: Any, num_microbatches: int = 1) -> Any:
    step = mw.parallelize(
        problem.step, method=method, cluster=cpu_cluster(8), num_microbatches=num_microbatches
    )
    return step.plan(problem.state, *problem.calls[0])


def test_a_plan_with_bodies_reads_back() -> None:
    plan = _plan(branches_and_loops_in_loops(), mw.IntraOp((2, 4)))
    bodies = [len(op.bodies) for op in plan.decision.operators if op.bodies]
    assert 2 in bodies
    assert mw.Plan.from_json(plan.to_json()) == plan


def test_a_loop_of_unknown_length_is_named() -> None:
    warnings = _plan(loop_until_it_converges(), mw.IntraOp((8,))).warnings
    (text,) = [w for w in warnings if "unknown number of times" in w]
    assert text.startswith("while at control_flow_problems.py:")
    assert text.endswith("runs an unknown number of times; the plan counts one")


@pytest.mark.parametrize(
    ("wrap", "has_branches"),
    [
        # It never skips, by a constant: Meshwise takes the branch.
        (lambda adam: optax.MultiSteps(adam, 2), False),
        (
            lambda adam: optax.MultiSteps(adam, 2, should_skip_update_fn=optax.skip_not_finite),
            True,
        ),
        (lambda adam: optax.apply_if_finite(adam, 3), True),
    ],
    ids=["MultiSteps", "MultiSteps that skip", "apply_if_finite"],
)
def test_state_stays_split_through_the_branches_of_an_optimizer(
    wrap: Any, has_branches: bool
) -> None:
    optimizer = wrap(optax.adam(1e-3))

    def step(state: Any, x: Any) -> Any:
        params, opt = state
        value, grads = mw.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2))(
            params
        )
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    params = {
        "a": jax.ShapeDtypeStruct((64, 256), jnp.float32),
        "b": jax.ShapeDtypeStruct((256, 64), jnp.float32),
    }
    state = (params, jax.eval_shape(optimizer.init, params))
    x = jax.ShapeDtypeStruct((128, 64), jnp.float32)
    for method, split in ((mw.Zero3(), 2), (mw.Zero2(), 0)):
        plan = mw.parallelize(step, method=method, cluster=cpu_cluster(8)).plan(state, x)
        stage = plan.stages[0]
        layouts = [
            (layout, argument.name.startswith("0/0/"))
            for argument, layout in zip(stage.arguments, plan.decision.inputs, strict=True)
            if len(argument.shape) == 2 and argument.name.startswith("0/")
        ]
        of_params = [layout for layout, is_param in layouts if is_param]
        of_optimizer = [layout for layout, is_param in layouts if not is_param]
        assert len(of_optimizer) >= 4
        assert all(layout != replicated(2) for layout in of_optimizer)
        assert sum(layout != replicated(2) for layout in of_params) == split
        branches = [op for op in plan.decision.operators if op.bodies]
        assert bool(branches) == has_branches
        # The update runs on the tiles: nothing whole enters or leaves a branch.
        for op in branches:
            inside = [w for w in (*(u.layout for u in op.uses), *op.results) if len(w.dims) == 2]
            assert inside
            assert all(w != replicated(2) for w in inside)


# -- micro-batches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (
            lambda w, x: jnp.mean(
                lax.cond(jnp.max(x @ w) > 1, lambda h: h, lambda h: 2 * h, x @ w)
            ),
            r"cond at test_control_flow.py:\d+:\d+ .* \(a reduction over all rows decides its",
        ),
        (
            lambda w, x: jnp.mean(
                lax.stop_gradient(
                    lax.while_loop(lambda h: jnp.max(h) > 1, lambda h: h * 0.5, x @ w)
                )
                * (x @ w)
            ),
            r"at test_control_flow.py:\d+:\d+ ",
        ),
    ],
    ids=["cond", "while"],
)
def test_what_the_batch_decides_does_not_separate(loss: Any, text: str) -> None:
    def step(w: Any, x: Any) -> Any:
        value, grad = mw.value_and_grad(loss)(w, x)
        return w - 0.1 * grad, value

    parallel = mw.parallelize(step, cluster=cpu_cluster(8), num_microbatches=2)
    args = (jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((16, 8), jnp.float32))
    with pytest.raises(mw.errors.TraceError, match=text):
        parallel.plan(*args)
