"""What a plan says of a model is what XLA compiles: collectives, FLOP, memory (DESIGN I2)."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
from benchmarks.fidelity import Comparison, compare_step

import meshwise as mw
from meshwise.methods import Method
from model_configs import CONFIGS
from model_steps import model_step
from oracle.parallel import CLUSTER
from oracle.tolerances import FLOP_ERROR, MEMORY_ABOVE, MEMORY_BELOW

METHODS: dict[str, Method] = {
    "DataParallel": mw.DataParallel(),
    "Zero3": mw.Zero3(),
    "Megatron": mw.Megatron(2, 4),
    "IntraOp8": mw.IntraOp((8,)),
    "IntraOp2x4": mw.IntraOp((2, 4)),
}
ALL = list(itertools.product(CONFIGS, METHODS))
QUICK = [("llama", "DataParallel"), ("moe", "DataParallel")]

# What does not hold yet: predicted over measured, with JAX 0.10.2.
MEMORY_TOO_HIGH = {
    ("llama", "DataParallel"): 1.123,
    ("llama", "Zero3"): 1.156,
    ("llama", "Megatron"): 1.228,
    ("llama", "IntraOp8"): 1.140,
    ("llama", "IntraOp2x4"): 1.139,
    ("bert", "Zero3"): 1.146,
    ("bert", "IntraOp8"): 1.135,
    ("bert", "IntraOp2x4"): 1.123,
}


@cache
def _compared(name: str, method: str) -> Comparison:
    step, state, batch = model_step(*CONFIGS[name])
    parallel = mw.parallelize(step, method=METHODS[method], cluster=CLUSTER)
    return compare_step(name, parallel, state, batch)


def _rows(wrong: dict[tuple[str, str], float]) -> list[Any]:
    rows = []
    for row in ALL:
        marks: list[Any] = [] if row in QUICK and row not in wrong else [pytest.mark.slow]
        if row in wrong:
            marks.append(pytest.mark.xfail(reason=f"ratio {wrong[row]}"))
        rows.append(pytest.param(*row, marks=marks))
    return rows


@pytest.mark.parametrize(("name", "method"), _rows({}))
def test_collectives_and_flop_of_a_model(name: str, method: str) -> None:
    found = _compared(name, method)
    assert found.wrong_collectives == {}
    assert found.flop_ratio == pytest.approx(1, abs=FLOP_ERROR)


@pytest.mark.parametrize(("name", "method"), _rows(MEMORY_TOO_HIGH))
def test_memory_of_a_model(name: str, method: str) -> None:
    found = _compared(name, method)
    assert 1 - MEMORY_BELOW <= found.memory_ratio <= 1 + MEMORY_ABOVE, (
        f"{found.predicted_bytes} predicted, {found.measured_bytes} measured"
    )
