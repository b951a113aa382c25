"""The lowering by sharding constraints as oracle of the explicit one, on the same decision."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import jax
import pytest

from doubles.constrained_program import run_constrained
from doubles.random_decision import random_decision
from meshwise.spmd.program import shardings
from oracle.compare import assert_same_x64
from oracle.parallel import CLUSTER, decided_step, traced
from oracle.problem import Trajectory, host_copy, run
from property.random_programs import random_problem

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")


def _constrained(step: Any, decision: Any, logical: Any, mesh: Any) -> Any:
    jitted = jax.jit(
        lambda *args: tuple(run_constrained(step.program, decision, logical, args)),
        in_shardings=tuple(shardings(decision.inputs, mesh)),
        out_shardings=tuple(shardings([use.layout for use in decision.outputs], mesh)),
    )
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in step.in_avals]
    return jitted.lower(*specs).compile()


@pytest.mark.parametrize(("seed", "shape", "b"), [(1, (8,), 2), (5, (2, 4), 1)])
def test_both_lowerings_give_the_same(seed, shape, b):
    problem, mesh = random_problem(seed), CLUSTER.mesh(shape)
    problem = dataclasses.replace(problem, calls=problem.calls[:1])
    step = traced(problem, b)
    decision = random_decision(step.graph, mesh, random.Random(seed))
    explicit = run(decided_step(step, decision, mesh), problem)
    oracle = run(decided_step(step, decision, mesh, _constrained), problem)
    want = Trajectory(
        start=oracle.start, state=host_copy(oracle.state), outs=host_copy(oracle.outs)
    )
    assert_same_x64(want, explicit)
