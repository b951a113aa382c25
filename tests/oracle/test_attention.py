"""Attention whose keys stay split over devices: against one device (I1), and as compiled (I2)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwise.cluster.cpu import cpu_cluster
from meshwise.graph.sends import ring_axes, takes_halves
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.counts.flop import device_flop
from meshwise.plan.verify import verify_decision
from meshwise.runtime.compile import compile_decided
from meshwise.runtime.fidelity import bytes_of, compiled_bytes_of
from meshwise.runtime.hlo.flop import hlo_dense_flop
from meshwise.spmd.program import concrete_mesh
from oracle.attention_problems import by_hand, by_jax, causal, joined, layers, ring_decision
from oracle.compare import assert_same_bf16, assert_same_fp32, assert_same_x64
from oracle.parallel import decided_step
from oracle.problem import Problem, reference, run


def _same(
    problem: Problem,
    shape: tuple[int, ...],
    check: Any,
    num_microbatches: int = 1,
    goes_round: Any = ring_axes,
) -> None:
    step = joined(problem, num_microbatches)
    mesh = cpu_cluster(math.prod(shape)).mesh(shape)
    decision = ring_decision(step.graph, mesh, goes_round)
    verify_decision(step.graph, decision, mesh)
    check(reference(problem), run(decided_step(step, decision, mesh), problem))


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize(
    "shape", [*(pytest.param(s, marks=pytest.mark.slow) for s in [(4,), (8,)]), (2, 4)], ids=str
)
def test_softmax_between_products_means_the_same_as_a_ring(shape: tuple[int, ...]) -> None:
    _same(layers(by_hand, rows=2, length=16), shape, assert_same_x64)


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize(
    "scan", [pytest.param(False, marks=pytest.mark.slow), True], ids=["unrolled", "scanned"]
)
def test_micro_batches_of_a_ring_mean_the_same(scan: bool) -> None:
    _same(layers(by_hand, rows=4, length=16, scan=scan), (2, 4), assert_same_x64, 2)


@pytest.mark.usefixtures("quick_steps")
def test_dot_product_attention_means_the_same_as_a_ring() -> None:
    _same(layers(by_jax, rows=2, length=16), (2, 4), assert_same_fp32)


@pytest.mark.usefixtures("quick_steps")
def test_a_ring_in_bfloat16_is_as_one_device() -> None:
    _same(layers(by_jax, rows=2, length=16, dtype=jnp.bfloat16), (8,), assert_same_bf16)


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize(
    "shape",
    [*(pytest.param(s, marks=pytest.mark.slow) for s in [(2,), (4,), (8,)]), (3,), (2, 4)],
    ids=str,
)
def test_a_causal_ring_in_halves_means_the_same(shape: tuple[int, ...]) -> None:
    rows, length = (3, 24) if shape == (3,) else (2, 32)
    _same(layers(causal, rows=rows, length=length), shape, assert_same_x64, 1, takes_halves)


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize(
    "scan", [pytest.param(False, marks=pytest.mark.slow), True], ids=["unrolled", "scanned"]
)
def test_micro_batches_of_a_causal_ring_mean_the_same(scan: bool) -> None:
    problem = layers(causal, rows=4, length=16, scan=scan)
    _same(problem, (2, 4), assert_same_x64, 2, takes_halves)


@pytest.mark.usefixtures("quick_steps")
def test_a_causal_ring_in_low_precision() -> None:
    _same(layers(causal, rows=2, length=16), (4,), assert_same_fp32, 1, takes_halves)
    problem = layers(causal, rows=2, length=16, dtype=jnp.bfloat16)
    _same(problem, (4,), assert_same_bf16, 1, takes_halves)


@pytest.mark.parametrize("count", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 8))])
def test_a_causal_ring_sends_and_computes_as_planned(count: int) -> None:
    """Halves are exchanged, and of 4 n pairs of them each device computes with 2 n + 1."""
    problem = layers(causal, rows=1, length=64)
    step, mesh = joined(problem), cpu_cluster(count).mesh((count,))
    decision = ring_decision(step.graph, mesh, takes_halves)
    devices = concrete_mesh(mesh, jax.devices()[:count])
    text = compile_decided(step, decision, mesh, devices).as_text()
    planned = bytes_of(collectives(step.graph, decision, mesh))
    assert planned["permute"] > 0
    assert planned == compiled_bytes_of(text, mesh.sizes)
    flop = device_flop(step.graph, decision, mesh)
    assert hlo_dense_flop(text) == pytest.approx(flop, rel=0.01)


@pytest.mark.parametrize(
    "scan", [pytest.param(False, marks=pytest.mark.slow), True], ids=["unrolled", "scanned"]
)
def test_planned_collectives_of_a_ring_are_those_of_the_compiled_program(scan: bool) -> None:
    """Permutes stand in a loop of the compiled program, which may stand in another one."""
    problem = layers(by_hand, rows=2, length=32, scan=scan)
    step, mesh = joined(problem), cpu_cluster(8).mesh((2, 4))
    decision = ring_decision(step.graph, mesh)
    devices = concrete_mesh(mesh, jax.devices()[:8])
    compiled = compile_decided(step, decision, mesh, devices)
    found = compiled_bytes_of(compiled.as_text(), mesh.sizes)
    planned = bytes_of(collectives(step.graph, decision, mesh))
    assert planned["permute"] == found["permute"] > 0
    assert planned == found
