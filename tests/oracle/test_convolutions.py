"""Convolutional nets: blocks of images with their neighbours' edges, groups, statistics, pools."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.fidelity import compiled_collective_bytes, planned_collective_bytes
from jax import lax

import meshwise as mw
from doubles.random_decision import random_decision
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.graph.loops import is_feasible
from meshwise.plan.counts.collectives import collective_s, collectives
from meshwise.plan.verify import verify_decision
from meshwise.runtime.compile import compile_decided
from meshwise.runtime.hlo.collectives import hlo_collectives
from meshwise.spmd import halo
from oracle.compare import assert_same_x64
from oracle.parallel import CLUSTER, decided_step, parallel_step, run_method, traced
from oracle.problem import Problem, reference, run
from oracle.tolerances import NUM_STEPS

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

ROWS, IMAGE, COLORS, CLASSES = 8, 16, 2, 4


def _conv(x: Any, kernel: Any, stride: int = 1, padding: Any = "SAME", groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _normal(x: Any, scale: Any) -> Any:
    """Batch-norm with the statistics of the whole batch."""
    mean = jnp.mean(x, (0, 1, 2))
    variance = jnp.mean(jnp.square(x - mean), (0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-3) * scale


def _pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def residual_net(*, normal: bool = True) -> Problem:
    """A wide first kernel, a pool, a block with a strided shortcut and grouped kernels."""
    rng = np.random.default_rng(0)
    shapes = {
        "first": (5, 5, COLORS, 8),
        "one": (3, 3, 8, 16),
        "two": (3, 3, 4, 16),
        "shortcut": (1, 1, 8, 16),
        "head": (16, CLASSES),
    }
    state = {name: jnp.asarray(rng.normal(size=s) / 4) for name, s in shapes.items()}
    state |= {"scale0": jnp.ones(8), "scale1": jnp.ones(16)}

    scaled = _normal if normal else jnp.multiply

    def loss(p: Any, batch: Any) -> Any:
        h = jax.nn.relu(scaled(_conv(batch["x"], p["first"], 2), p["scale0"]))
        h = _pool(h)
        inner = jax.nn.relu(scaled(_conv(h, p["one"], 2), p["scale1"]))
        h = _conv(inner, p["two"], groups=4) + _conv(h, p["shortcut"], 2, "VALID")
        logits = jnp.mean(h, (1, 2)) @ p["head"]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(ROWS), batch["y"]])

    def step(state: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    calls = tuple(
        (
            {
                "x": rng.normal(size=(ROWS, IMAGE, IMAGE, COLORS)),
                "y": rng.integers(0, CLASSES, ROWS, dtype=np.int32),
            },
        )
        for _ in range(NUM_STEPS)
    )
    return Problem(step=step, state=state, calls=calls)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "method",
    [
        mw.IntraOp((2, 4)),
        pytest.param(mw.IntraOp((8,)), marks=SLOW),
        pytest.param(mw.IntraOp((2, 2, 2)), marks=SLOW),
        pytest.param(mw.DataParallel(), marks=SLOW),
        pytest.param(mw.Zero3(), marks=SLOW),
    ],
    ids=str,
)
def test_step_means_the_same(method: Any) -> None:
    problem = residual_net()
    assert_same_x64(reference(problem), run_method(problem, method))


@pytest.mark.parametrize(
    ("shape", "seed"),
    [
        ((2, 4), 1),
        *(pytest.param(s, n, marks=SLOW) for s in ((8,), (2, 4), (2, 2, 2)) for n in (2, 3)),
    ],
    ids=str,
)
def test_random_decision_means_the_same_and_sends_what_it_lists(
    shape: tuple[int, ...], seed: int
) -> None:
    problem = residual_net()
    step, mesh = traced(problem), CLUSTER.mesh(shape)
    decision = random_decision(step.graph, mesh, random.Random(seed))
    verify_decision(step.graph, decision, mesh)
    planned = collectives(step.graph, decision, mesh)
    if len(shape) > 1:
        assert any(item.kind == "permute" for item in planned), "no edges: choose another seed"
    texts: list[str] = []

    def compile_with(*args: Any) -> Any:
        compiled = compile_decided(*args)
        texts.append(compiled.as_text())
        return compiled

    got = run(decided_step(step, decision, mesh, compile_with), problem)
    assert_same_x64(reference(problem), got)
    assert planned_collective_bytes(planned, mesh.names, mesh.sizes) == compiled_collective_bytes(
        hlo_collectives(texts[0], mesh.sizes)
    )


def smoothing() -> Problem:
    """One image, too large for anything but blocks of it."""
    rng = np.random.default_rng(0)

    def loss(p: Any, batch: Any) -> Any:
        h = jnp.tanh(_conv(batch["x"], p["a"]))
        return jnp.mean(jnp.square(_conv(_pool(h), p["b"])))

    def step(state: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    state = {"a": jnp.asarray(rng.normal(size=(3, 3, 1, 1))), "b": jnp.ones((5, 5, 1, 1)) / 25}
    calls = tuple(({"x": rng.normal(size=(1, 256, 64, 1))},) for _ in range(NUM_STEPS))
    return Problem(step=step, state=state, calls=calls)


def test_blocks_of_an_image_mean_the_same() -> None:
    problem = smoothing()
    step = parallel_step(problem, mw.IntraOp((8,)))
    plan = step.plan(problem.state, *problem.calls[0])
    permutes = [item for item in plan.collectives if item.kind == "permute"]
    # Rows of 64 doubles: one on each side of a 3 x 3 kernel, two rows of 32 of a 5 x 5 one.
    sent = {(item.where.split(" ")[0], item.num_bytes) for item in permutes}
    assert ("conv_general_dilated", 8 * 64 * 8) in sent
    assert ("conv_general_dilated", 8 * 2 * 32 * 8) in sent
    assert "permute" in plan.explain()
    assert_same_x64(reference(problem), run(step, problem))


def test_a_large_image_is_split_and_its_edges_are_paid_for() -> None:
    problem = smoothing()
    x = jax.ShapeDtypeStruct((1, 4096, 4096, 1), jnp.float64)
    cluster = ClusterSpec.virtual("1x p3.16xlarge")
    step = mw.parallelize(problem.step, method=mw.IntraOp((8,)), cluster=cluster)
    plan = step.plan(problem.state, {"x": x})
    large = dataclasses.replace(problem, calls=(({"x": x},),))
    assert plan.device_flop == pytest.approx(_whole_flop(large) / 8)
    edges = [item for item in plan.collectives if item.kind == "permute"]
    paid = sum(item.count * collective_s(item, plan.mesh) for item in edges)
    assert 0 < paid < plan.step_time_s


def _whole_flop(problem: Problem) -> float:
    return sum(op.flop for op in traced(problem).graph.operators if op.heavy)


def test_without_its_edges_a_step_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison bites: a neighbour's edge replaced by zeros is seen."""
    problem = smoothing()
    real = halo._taken

    def nothing(*args: Any) -> Any:
        return jnp.zeros_like(real(*args))

    monkeypatch.setattr(halo, "_taken", nothing)
    with pytest.raises(AssertionError):
        assert_same_x64(reference(problem), run_method(problem, mw.IntraOp((8,))))


def test_a_block_shorter_than_its_edge_is_refused() -> None:
    problem = smoothing()
    step, mesh = traced(problem), CLUSTER.mesh((8,))
    decision = random_decision(step.graph, mesh, random.Random(0))
    place = next(i for i, op in enumerate(step.graph.operators) if op.rule.halos)
    operator = step.graph.operators[place]
    (long,) = {h.size for h in operator.rule.halos if h.dim == 1}
    rule = dataclasses.replace(
        operator.rule,
        halos=tuple(dataclasses.replace(h, low=long // 8 + 1) for h in operator.rule.halos),
    )
    strategy = (operator.rule.operands[0][1][0],)
    assert is_feasible(operator.rule, strategy, mesh.sizes)
    operators = [*step.graph.operators]
    operators[place] = dataclasses.replace(operator, rule=rule)
    chosen = [*decision.operators]
    chosen[place] = dataclasses.replace(chosen[place], strategy=strategy)
    graph = dataclasses.replace(step.graph, operators=tuple(operators))
    with pytest.raises(PlanError, match="shorter than"):
        verify_decision(graph, dataclasses.replace(decision, operators=tuple(chosen)), mesh)


@pytest.mark.parametrize("b", [2, pytest.param(4, marks=SLOW)])
def test_grouped_and_strided_convolutions_in_micro_batches(b: int) -> None:
    problem = residual_net(normal=False)
    assert_same_x64(reference(problem), run_method(problem, mw.IntraOp((2, 4)), b))


def test_a_plan_says_that_convolutions_in_a_loop_are_slow_on_cpu() -> None:
    problem = residual_net(normal=False)

    def said(cluster: ClusterSpec, num_microbatches: int) -> list[str]:
        step = mw.parallelize(
            problem.step,
            method=mw.DataParallel(),
            cluster=cluster,
            num_microbatches=num_microbatches,
        )
        warnings = step.plan(problem.state, *problem.calls[0]).warnings
        return [text for text in warnings if "convolutions in a loop" in text]

    (text,) = said(CLUSTER, 2)
    assert text.startswith("XLA:CPU can be many times slower")
    assert "over the 2 micro-batches" in text
    assert not said(CLUSTER, 1)
    assert not said(mw.Cluster.virtual("v5e-4"), 2)


def test_a_small_convolution_in_a_loop_is_no_warning() -> None:
    def step(weights: Any, images: Any) -> Any:
        def loss_fn(weights: Any) -> Any:
            kernel, dense = weights
            x = jax.lax.conv_general_dilated(
                images, kernel, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return jnp.sum(jnp.tanh(x @ dense) @ dense)

        gradients = jax.grad(loss_fn)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    def warned(width: int) -> bool:
        weights = [jnp.zeros((4, 4, 3, width)), jnp.zeros((width, width))]
        parallel = mw.parallelize(step, cluster=CLUSTER, num_microbatches=2)
        warnings = parallel.plan(weights, jnp.zeros((16, 16, 16, 3))).warnings
        return any("convolutions in a loop" in text for text in warnings)

    assert warned(8)
    assert not warned(512)
