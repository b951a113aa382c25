"""Products of rows in groups on a device that is not here: they compile, as is planned."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from meshwise.graph.graph import Operator
from meshwise.graph.layout import Layout
from meshwise.graph.loops import NONE, operand_layouts, result_layouts
from meshwise.memory.scratch import scratch_bytes
from meshwise.rules.products.ragged_dot import local_ragged_dot
from meshwise.spmd.shards import SpaceShards
from meshwise.targets.catalog import compile_target
from meshwise.targets.compiler import compile_programs
from meshwise.targets.lowered import target_program
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import to_graph

BATCH, ROWS, WIDTH, FFN, EXPERTS = 8, 4096, 2048, 7168, 8
NUMBERS = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((2,), (1,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[0],
)
# What cuBLAS takes for itself is not predicted (memory/gpu/target).
WORKSPACE = 32 << 20


def _loss(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot_general(rows, matrices, sizes, NUMBERS).astype(jnp.float32).sum()


def _products(dtype: Any) -> tuple[Any, list[tuple[Any, Operator]]]:
    """Return the tensors and products of a loss and its gradients."""
    operands = (
        jax.ShapeDtypeStruct((BATCH, ROWS, WIDTH), dtype),
        jax.ShapeDtypeStruct((EXPERTS, WIDTH, FFN), dtype),
        jax.ShapeDtypeStruct((BATCH, EXPERTS), jnp.int32),
    )
    program = flatten(jax.make_jaxpr(jax.value_and_grad(_loss, (0, 1)))(*operands))
    graph = to_graph(program)
    products = [
        (node, operator)
        for node, operator in zip(program.nodes, graph.operators, strict=True)
        if node.name == "ragged_dot_general"
    ]
    assert len(products) == 3
    return graph.tensors, products


def _programs(dtype: Any, platform: str) -> tuple[list[int], list[Any]]:
    """Return the scratch and the program of each product on one device."""
    planned, lowered = [], []
    tensors, products = _products(dtype)
    for node, operator in products:
        shards = SpaceShards(operator.rule, (NONE,), (1,), ("x",))

        def run(*args: Any, node: Any = node, shards: Any = shards) -> Any:
            return local_ragged_dot(node.equation, shards, args)

        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in node.equation.in_avals]
        planned.append(scratch_bytes(operator, (NONE,), (1,), tensors))
        traced = jax.jit(run).trace(*shapes).lower(lowering_platforms=(platform,))
        lowered.append(target_program("product", traced, 1, platform))
    return planned, lowered


def _dispatched(dtype: Any, count: int) -> tuple[list[int], list[Any]]:
    """Return the scratch and the program of each product whose rows go to their groups."""
    planned, lowered = [], []
    tensors, products = _products(dtype)
    mesh = AbstractMesh((count,), ("x",), axis_types=(AxisType.Auto,))

    def spec(layout: Layout) -> PartitionSpec:
        return PartitionSpec(*("x" if axes else None for axes in layout.dims))

    for node, operator in products:
        assert operator.rule.dispatch is not None
        strategy = (operator.rule.dispatch.loop,)
        shards = SpaceShards(operator.rule, strategy, (count,), ("x",))
        wants = operand_layouts(operator.rule, strategy, (count,))
        makes = result_layouts(operator.rule, strategy, (count,))
        assert wants is not None
        assert makes is not None

        def run(*args: Any, node: Any = node, shards: Any = shards) -> Any:
            return local_ragged_dot(node.equation, shards, args)

        mapped = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=tuple(map(spec, wants)),
            out_specs=[spec(x) for x in makes],
            check_vma=False,
        )
        shapes = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec(layout)))
            for x, layout in zip(node.equation.in_avals, wants, strict=True)
        ]
        planned.append(scratch_bytes(operator, strategy, (count,), tensors))
        traced = jax.jit(mapped).trace(*shapes).lower(lowering_platforms=("cuda",))
        lowered.append(target_program("product", traced, count, "cuda"))
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
def test_a_tpu_holds_a_strip_more_than_is_planned() -> None:
    planned, programs = _programs(jnp.bfloat16, "tpu")
    for num_bytes, answer in zip(
        planned, compile_programs(compile_target("v5p"), programs), strict=True
    ):
        assert answer.memory.temporary_bytes < 1.45 * num_bytes


@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize("count", [2, 8])
def test_a_gpu_whose_rows_go_to_their_groups_holds_what_is_planned(count: int) -> None:
    planned, programs = _dispatched(jnp.bfloat16, count)
    for num_bytes, answer in zip(
        planned, compile_programs(compile_target("h100"), programs), strict=True
    ):
        assert num_bytes + WORKSPACE == pytest.approx(answer.memory.temporary_bytes, rel=0.2)
