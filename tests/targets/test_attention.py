"""Attention as one operator on one GPU that is not here: what it holds besides its operands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwise.graph.loops import NONE
from meshwise.memory.scratch import scratch_bytes
from meshwise.targets.catalog import compile_target
from meshwise.targets.compiler import compile_programs
from meshwise.targets.lowered import target_program
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import to_graph
from rule_cases.attention import both_of


@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize("causal", [False, True], ids=["no mask", "causal"])
@pytest.mark.parametrize("group", [(), (4,)], ids=["heads alone", "groups"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_a_gpu_holds_what_is_planned(dtype: Any, group: tuple[int, ...], causal: bool) -> None:
    planned, programs = [], []
    for fun, shapes in both_of(
        batch=(2, 4), group=group, rows=4096, keys=4096, features=128, causal=causal, dtype=dtype
    ):
        graph = to_graph(flatten(jax.make_jaxpr(fun)(*shapes)))
        planned.append(scratch_bytes(graph.operators[-1], (NONE,), (1,), graph.tensors))
        lowered = jax.jit(fun).trace(*shapes).lower(lowering_platforms=("cuda",))
        programs.append(target_program("attention", lowered, 1, "cuda"))
    for num_bytes, answer in zip(
        planned, compile_programs(compile_target("h100"), programs), strict=True
    ):
        assert 0.78 < num_bytes / answer.memory.temporary_bytes < 1.25
