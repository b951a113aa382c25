"""Rows that go to the devices of their experts: against one device (I1), and as compiled (I2)."""

from __future__ import annotations

import math
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshwise as mw
from doubles.random_decision import random_decision
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.dispatch import dispatch_axes
from meshwise.graph.graph import Graph
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.counts.walk import visits
from meshwise.plan.decision import GraphDecision
from meshwise.plan.verify import verify_decision
from meshwise.runtime.compile import compile_decided
from meshwise.runtime.fidelity import bytes_of, compiled_bytes_of
from meshwise.spmd.program import concrete_mesh
from meshwise.trace.experts.match import PRODUCT
from meshwise.trace.experts.replace import with_experts
from meshwise.trace.step import StepSignature, TracedStep, open_step, trace_step
from oracle.compare import assert_same_bf16, assert_same_x64
from oracle.parallel import decided_step
from oracle.problem import Problem, reference, run

WIDTH, INNER, EXPERTS = 8, 16, 8
OF_EACH = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((2,), (1,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[0],
)
OF_ALL = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (1,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[0],
)


def _problem(numbers: Any, dtype: Any = None, *, scan: bool = False) -> Problem:
    """Two layers of experts; most rows go to few of them, some to none."""
    shape = (8, 24, WIDTH) if numbers is OF_EACH else (8 * 24, WIDTH)

    def layer(rows: Any, weights: Any, sizes: Any) -> Any:
        def product(rows: Any, name: str) -> Any:
            return lax.ragged_dot_general(rows, weights[name].astype(rows.dtype), sizes, numbers)

        return rows + product(jax.nn.silu(product(rows, "gate")) * product(rows, "up"), "down")

    def loss(weights: Any, batch: Any) -> Any:
        rows = batch["x"] if dtype is None else batch["x"].astype(dtype)
        if scan:
            rows, _ = lax.scan(lambda x, w: (layer(x, w, batch["sizes"]), None), rows, weights)
        else:
            for n in range(2):
                own = jax.tree.map(lambda w, n=n: w[n], weights)
                rows = layer(rows, own, batch["sizes"])
        return jnp.mean(rows.astype(batch["x"].dtype) ** 2)

    def step(weights: Any, batch: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradient), value

    rng = np.random.default_rng(0)
    shapes = {"gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH)}
    state = {
        name: jnp.asarray(rng.normal(size=(2, EXPERTS, *shape)) * 0.3)
        for name, shape in shapes.items()
    }
    shares = np.array([0.5, 0.2, 0.1, 0.05, 0, 0, 0.05, 0.05, 0.05])
    batches = [
        {
            "x": jnp.asarray(rng.normal(size=shape)),
            "sizes": jnp.asarray(_sizes(rng, shape, shares), jnp.int32),
        }
        for _ in range(2)
    ]
    return Problem(step=step, state=state, calls=tuple((batch,) for batch in batches))


def _sizes(rng: Any, shape: tuple[int, ...], shares: Any) -> Any:
    """Draw sizes of groups; the last share is of rows of no expert."""
    outer, rows = shape[:-2], shape[-2]
    return rng.multinomial(rows, shares, size=outer)[..., :EXPERTS]


def _traced(problem: Problem, num_microbatches: int = 1, *, joins: bool = False) -> TracedStep:
    dims = 0 if problem.calls[0][0]["x"].ndim == 3 else None
    signature = StepSignature(batch_argnums=(1,), batch_dims=dims, donate_argnums="auto")
    opened = open_step(problem.step, (problem.state, *problem.calls[0]), {}, signature)
    if joins:
        opened = with_experts(opened)
        assert opened.joins_experts
    return trace_step(opened, num_microbatches=num_microbatches, num_devices=8)


def _decision(graph: Graph, mesh: LogicalMesh) -> GraphDecision:
    """Return the first random decision in which rows go to their groups in products of all kinds.

    These are products with matrices, forward and backward, and products that make matrices.
    """
    for seed in range(2000):
        decision = random_decision(graph, mesh, random.Random(seed))
        found = [
            (visit.operator.kind, len(visit.operator.rule.dispatch.operands))
            for visit in visits(graph, decision)
            if visit.operator.rule.dispatch is not None
            and dispatch_axes(visit.operator.rule, visit.decision.strategy, mesh.sizes)
        ]
        if found.count((PRODUCT, 1)) >= 2 and found.count((PRODUCT, 2)) >= 1:
            return decision
        if {kind for kind, _ in found} == {"experts", "experts_gradient"}:
            return decision
    raise AssertionError("no dispatch was drawn")


def _same(
    problem: Problem,
    shape: tuple[int, ...],
    check: Any,
    num_microbatches: int = 1,
    *,
    joins: bool = False,
) -> None:
    step = _traced(problem, num_microbatches, joins=joins)
    mesh = cpu_cluster(math.prod(shape)).mesh(shape)
    decision = _decision(step.graph, mesh)
    verify_decision(step.graph, decision, mesh)
    check(reference(problem), run(decided_step(step, decision, mesh), problem))


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize("joins", [False, True], ids=["products", "experts"])
@pytest.mark.parametrize("numbers", [OF_EACH, OF_ALL], ids=["of each sequence", "of all"])
@pytest.mark.parametrize(
    "shape", [*(pytest.param(s, marks=pytest.mark.slow) for s in [(4,), (8,)]), (2, 4)], ids=str
)
def test_rows_that_go_to_their_experts_mean_the_same(
    shape: tuple[int, ...], numbers: Any, joins: bool
) -> None:
    _same(_problem(numbers), shape, assert_same_x64, joins=joins)


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize("joins", [False, True], ids=["products", "experts"])
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_micro_batches_mean_the_same(scan: bool, joins: bool) -> None:
    _same(_problem(OF_EACH, scan=scan), (2, 4), assert_same_x64, 2, joins=joins)


@pytest.mark.usefixtures("quick_steps")
@pytest.mark.parametrize("joins", [False, True], ids=["products", "experts"])
def test_rows_in_bfloat16_are_as_on_one_device(joins: bool) -> None:
    _same(_problem(OF_EACH, jnp.bfloat16), (8,), assert_same_bf16, joins=joins)


@pytest.mark.parametrize("joins", [False, True], ids=["products", "experts"])
def test_planned_collectives_are_those_of_the_compiled_program(joins: bool) -> None:
    """The name of the loop over rounds says how many are planned."""
    step, mesh = _traced(_problem(OF_EACH), joins=joins), cpu_cluster(8).mesh((2, 4))
    decision = _decision(step.graph, mesh)
    devices = concrete_mesh(mesh, jax.devices()[:8])
    text = compile_decided(step, decision, mesh, devices).as_text()
    planned = bytes_of(collectives(step.graph, decision, mesh))
    assert planned["all-to-all"] > 0
    assert planned == compiled_bytes_of(text, mesh.sizes)
