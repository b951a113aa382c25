"""Products of rows in groups on a device that is not here: they compile, as is planned."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from meshwise.graph.loops import NONE
from meshwise.memory.scratch import scratch_bytes
from meshwise.rules.products.ragged_dot import local_ragged_dot
from meshwise.spmd.shards import SpaceShards
from meshwise.targets.catalog import compile_target
from meshwise.targets.compiler import compile_programs
from meshwise.targets.lowered import target_program
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import to_graph

BATCH, ROWS, WIDTH, FFN, EXPERTS = 2, 4096, 2048, 7168, 8
NUMBERS = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((2,), (1,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[0],
)
# What cuBLAS takes for itself is not predicted (memory/gpu/target).
WORKSPACE = 32 << 20


def _loss(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot_general(rows, matrices, sizes, NUMBERS).astype(jnp.float32).sum()


def _programs(dtype: Any, platform: str) -> tuple[list[int], list[Any]]:
    """Return the scratch and the program of each product of a loss and its gradients."""
    operands = (
        jax.ShapeDtypeStruct((BATCH, ROWS, WIDTH), dtype),
        jax.ShapeDtypeStruct((EXPERTS, WIDTH, FFN), dtype),
        jax.ShapeDtypeStruct((BATCH, EXPERTS), jnp.int32),
    )
    program = flatten(jax.make_jaxpr(jax.value_and_grad(_loss, (0, 1)))(*operands))
    graph = to_graph(program)
    planned, lowered = [], []
    for node, operator in zip(program.nodes, graph.operators, strict=True):
        if node.name != "ragged_dot_general":
            continue
        shards = SpaceShards(operator.rule, (NONE,), (1,), ("x",))

        def run(*args: Any, node: Any = node, shards: Any = shards) -> Any:
            return local_ragged_dot(node.equation, shards, args)

        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in node.equation.in_avals]
        planned.append(scratch_bytes(operator, (NONE,), (1,), graph.tensors))
        traced = jax.jit(run).trace(*shapes).lower(lowering_platforms=(platform,))
        lowered.append(target_program("product", traced, 1, platform))
    assert len(planned) == 3
    return planned, lowered


@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_a_gpu_holds_what_is_planned(dtype: Any) -> None:
    planned, programs = _programs(dtype, "cuda")
    for num_bytes, answer in zip(
        planned, compile_programs(compile_target("h100"), programs), strict=True
    ):
        assert num_bytes + WORKSPACE == pytest.approx(answer.memory.temporary_bytes, rel=0.02)


@pytest.mark.usefixtures("tpu_compiler")
def test_a_tpu_holds_little_more_than_is_planned() -> None:
    planned, programs = _programs(jnp.bfloat16, "tpu")
    for num_bytes, answer in zip(
        planned, compile_programs(compile_target("v5p"), programs), strict=True
    ):
        assert answer.memory.temporary_bytes < 1.3 * num_bytes
