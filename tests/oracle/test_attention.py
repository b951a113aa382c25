"""Attention whose keys stay split over devices: against one device (I1), and as compiled (I2)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwise.cluster.cpu import cpu_cluster
from meshwise.plan.counts.collectives import collectives
from meshwise.plan.verify import verify_decision
from meshwise.runtime.compile import compile_decided
from meshwise.runtime.fidelity import bytes_of, compiled_bytes_of
from meshwise.spmd.program import concrete_mesh
from oracle.attention_problems import by_hand, by_jax, joined, layers, ring_decision
from oracle.compare import assert_same_bf16, assert_same_fp32, assert_same_x64
from oracle.parallel import decided_step
from oracle.problem import Problem, reference, run


def _same(problem: Problem, shape: tuple[int, ...], check: Any, num_microbatches: int = 1) -> None:
    step = joined(problem, num_microbatches)
    mesh = cpu_cluster(8 if 8 in (shape[0], shape[0] * shape[-1]) else 4).mesh(shape)
    decision = ring_decision(step.graph, mesh)
    verify_decision(step.graph, decision, mesh)
    check(reference(problem), run(decided_step(step, decision, mesh), problem))


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize("shape", [(4,), (8,), (2, 4)], ids=str)
def test_softmax_between_products_means_the_same_as_a_ring(shape: tuple[int, ...]) -> None:
    _same(layers(by_hand, rows=2, length=16), shape, assert_same_x64)


@pytest.mark.usefixtures("x64", "quick_steps")
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_micro_batches_of_a_ring_mean_the_same(scan: bool) -> None:
    _same(layers(by_hand, rows=4, length=16, scan=scan), (2, 4), assert_same_x64, 2)


@pytest.mark.usefixtures("quick_steps")
def test_dot_product_attention_means_the_same_as_a_ring() -> None:
    _same(layers(by_jax, rows=2, length=16), (2, 4), assert_same_fp32)


@pytest.mark.usefixtures("quick_steps")
def test_a_ring_in_bfloat16_is_as_one_device() -> None:
    _same(layers(by_jax, rows=2, length=16, dtype=jnp.bfloat16), (8,), assert_same_bf16)


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
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
