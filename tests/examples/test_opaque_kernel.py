"""The fused attention of the example equals the plain one, and is planned by its statement."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
import opaque_kernel
from oracle.compare import assert_same_x64
from oracle.parallel import run_method, run_random, traced
from oracle.problem import Problem, reference

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")


def _problem() -> Problem:
    state = jax.jit(opaque_kernel.create_state)(jax.random.key(0))
    calls = tuple((batch,) for batch in opaque_kernel.batches(2))
    return Problem(step=opaque_kernel.train_step, state=state, calls=calls)


def _plain(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


def test_the_kernel_and_its_gradient_are_those_of_attention():
    q, k, v, g = np.random.default_rng(0).normal(size=(4, 2, 3, 5, 4))
    out, pull = jax.vjp(opaque_kernel.attention, q, k, v)
    want, pull_plain = jax.vjp(_plain, q, k, v)
    np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-12)
    for got, true in zip(pull(g), pull_plain(g), strict=True):
        np.testing.assert_allclose(got, true, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("b", [1, 2])
def test_the_step_means_the_same_on_eight_devices(b):
    problem = _problem()
    want = reference(problem)
    assert_same_x64(want, run_method(problem, mw.IntraOp((2, 4)), b))
    if b == 1:
        assert_same_x64(want, run_random(problem, (2, 4), 0))


def test_the_kernels_run_in_parts():
    step = mw.parallelize(opaque_kernel.train_step, method=mw.IntraOp((2, 4)))
    problem = _problem()
    plan = step.plan(problem.state, *problem.calls[0])
    graph = traced(problem).graph
    kernels = [
        (op, decided)
        for op, decided in zip(graph.operators, plan.decision.operators, strict=True)
        if op.kind == "sharded_kernel"
    ]
    assert len(kernels) == 2
    for operator, decided in kernels:
        # Both axes of the mesh split the batch or the heads.
        assert sorted(loop.size for loop in operator.rule.loops) == [4, 16]
        assert all(choice >= 0 for choice in decided.strategy)
    assert not any("no rule" in text for text in plan.warnings)
