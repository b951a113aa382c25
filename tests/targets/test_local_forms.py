"""The local form of every primitive compiles for a GPU that is not here."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from meshwise.errors import ProgramError
from meshwise.graph.loops import NONE
from meshwise.spmd.shards import SpaceShards
from meshwise.targets.catalog import compile_target
from meshwise.targets.compiler import compile_programs
from meshwise.targets.lowered import target_program
from oracle.every_strategy import Run, runs_of
from rule_cases.case import Case
from rule_cases.table import CASES, ON_DEVICES

# What only the libraries of the device have: solvers and decompositions.
_OF_LIBRARIES = "No FFI handler registered"
# JAX has the first two for CPUs alone; callbacks need the devices.
_LEFT_OUT = {"hessenberg", "schur", "host_call", "pure_callback"}
EVERY = [case for case in (*CASES, *ON_DEVICES) if case.primitive not in _LEFT_OUT]


def _compile(run: Run) -> None:
    shards = SpaceShards(run.rule, (NONE,), (1,), ("x",))

    def local(*operands: Any) -> Any:
        return run.row.local(run.equation, shards, operands)

    lowered = jax.jit(local).trace(*run.operands).lower(lowering_platforms=("cuda",))
    program = target_program(run.equation.name, lowered, 1, "cuda")
    try:
        compile_programs(compile_target("h100"), [program])
    except ProgramError as error:
        if _OF_LIBRARIES in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_it_compiles(case: Case) -> None:
    with jax.enable_x64(case.x64):
        for run in runs_of(case.fun, case.operands, case.primitive):
            _compile(run)
