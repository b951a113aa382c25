"""Steps with Pallas' attention, interpreted: against one device (I1), kernels split as planned."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

import meshwise as mw
from doubles.gpu_attention import gpu_attention
from doubles.random_decision import random_decision
from meshwise.plan.counts.walk import visits
from meshwise.plan.verify import verify_decision
from opaque_kernel import backward_kernel, for_each_head, forward_kernel
from oracle.attention_problems import FEATURES, GROUPS, HEADS, layers
from oracle.compare import assert_same_bf16, assert_same_fp32, assert_same_x64
from oracle.parallel import CLUSTER, decided_step, parallel_step, traced
from oracle.problem import Problem, reference, run
from rule_cases.pallas import splash

# Of splash attention a block has 128 rows; this is two of them.
_ROWS = 256


def _ids(q: Any, lengths: Any) -> Any:
    """1 where a sequence has a token, else 0."""
    return (jnp.arange(q.shape[1]) < lengths[:, None]).astype(jnp.int32)


def by_splash(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Grouped heads, causal, with sequences of different lengths; by the kernels of a TPU."""
    with jax.ensure_compile_time_eval():
        kernel = splash(HEADS, rows=q.shape[1])
    ids = _ids(q, lengths)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q * FEATURES**-0.5, k, v))
    return jnp.swapaxes(jax.vmap(kernel)(q, k, v, SegmentIds(ids, ids)), 1, 2)


def by_triton(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """The same by the kernels of a GPU, which know no grouped heads."""
    k, v = (jnp.repeat(x, HEADS // GROUPS, axis=2) for x in (k, v))
    sizes = gpu_attention.BlockSizes(8, 8, 8, 8, 8, 8)
    scale = FEATURES**-0.5
    return gpu_attention.mha(q, k, v, _ids(q, lengths), scale, True, sizes, interpret=True)


@jax.custom_vjp
def _fused(q: Any, k: Any, v: Any) -> Any:
    return for_each_head(forward_kernel, (q, k, v), (q,))[0]


def _fused_backward(kept: Any, cotangent: Any) -> Any:
    return tuple(for_each_head(backward_kernel, (*kept, cotangent), kept))


_fused.defvjp(lambda *x: (_fused(*x), x), _fused_backward)


def by_own_kernels(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Kernels of the example, which also run in 64 bits; without a mask."""
    del lengths
    k, v = (jnp.repeat(x, HEADS // GROUPS, axis=2) for x in (k, v))
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    return jnp.swapaxes(_fused(q, k, v), 1, 2)


def _same_at_random(problem: Problem, shape: tuple[int, ...], check: Any) -> None:
    """Draw decisions until one splits heads of a kernel, and one splits rows of the batch."""
    step, mesh, want = traced(problem), CLUSTER.mesh(shape), reference(problem)
    wanted = {0, 1}
    for seed in range(100):
        decision = random_decision(step.graph, mesh, random.Random(seed))
        split = {
            loop
            for visit in visits(step.graph, decision)
            if visit.operator.kind == "pallas_call"
            for loop in visit.decision.strategy
        }
        if split & wanted:
            verify_decision(step.graph, decision, mesh)
            check(want, run(decided_step(step, decision, mesh), problem))
            wanted -= split
        if not wanted:
            return
    raise AssertionError("no decision splits all loops of a kernel")


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize("shape", [(2, 4), (2, 2, 2)], ids=str)
def test_kernels_mean_the_same_wherever_they_are_split(shape: tuple[int, ...]) -> None:
    _same_at_random(layers(by_own_kernels, rows=8, length=16), shape, assert_same_x64)


@pytest.mark.usefixtures("quick_steps")
def test_splash_attention_means_the_same_wherever_it_is_split() -> None:
    _same_at_random(layers(by_splash, rows=4, length=_ROWS), (2, 2, 2), assert_same_fp32)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_steps")
def test_splash_attention_in_bfloat16() -> None:
    problem = layers(by_splash, rows=4, length=_ROWS, dtype=jnp.bfloat16)
    step = parallel_step(problem, mw.Megatron(dp=2, tp=4))
    assert_same_bf16(reference(problem), run(step, problem))


@pytest.mark.usefixtures("quick_steps")
@pytest.mark.parametrize(
    ("attention", "length", "scan"),
    [
        (by_splash, _ROWS, True),
        # The other has all that this one has but its language.
        pytest.param(by_triton, 16, False, marks=pytest.mark.slow),
    ],
    ids=["scanned splash", "triton"],
)
def test_kernels_run_in_micro_batches_and_in_stages(
    attention: Any, length: int, scan: bool
) -> None:
    problem = layers(attention, rows=8, length=length, scan=scan)
    want = reference(problem)
    for method in (mw.IntraOp((2, 4)), mw.Auto(stages=2, schedule="1f1b")):
        step = parallel_step(problem, method, 2, batch_argnums=(1,))
        plan = step.plan(problem.state, *problem.calls[0])
        assert not [text for text in plan.warnings if "pallas_call" in text]
        assert_same_fp32(want, run(step, problem))
