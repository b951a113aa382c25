"""What a plan says of a model is what XLA compiles: collectives, FLOP, memory (invariant I2)."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from benchmarks.fidelity import Comparison, compare_step
from benchmarks.model_configs import CONFIGS

import meshwise as mw
from meshwise.models.steps import model_step
from meshwise.request.methods import Method
from oracle.parallel import CLUSTER
from oracle.tolerances import FLOP_ERROR, MEMORY_ABOVE, MEMORY_BELOW

pytestmark = pytest.mark.usefixtures("quick_compile")

METHODS: dict[str, Method] = {
    "DataParallel": mw.DataParallel(),
    "Zero3": mw.Zero3(),
    "Megatron": mw.Megatron(2, 4),
    "IntraOp8": mw.IntraOp((8,)),
    "IntraOp2x4": mw.IntraOp((2, 4)),
}
ALL = list(itertools.product(CONFIGS, METHODS))
QUICK = [("llama", "DataParallel"), ("moe", "DataParallel")]


@cache
def _compared(name: str, method: str) -> Comparison:
    step, state, batch = model_step(*CONFIGS[name]).abstract
    parallel = mw.parallelize(step, method=METHODS[method], cluster=CLUSTER)
    return compare_step(name, parallel, state, batch)


ROWS = [pytest.param(*row, marks=[] if row in QUICK else [pytest.mark.slow]) for row in ALL]


@pytest.mark.parametrize(("name", "method"), ROWS)
def test_collectives_and_flop_of_a_model(name: str, method: str) -> None:
    found = _compared(name, method)
    assert found.wrong_collectives == {}
    assert found.flop_ratio == pytest.approx(1, abs=FLOP_ERROR)


@pytest.mark.parametrize(("name", "method"), ROWS)
def test_memory_of_a_model(name: str, method: str) -> None:
    found = _compared(name, method)
    assert 1 - MEMORY_BELOW <= found.memory_ratio <= 1 + MEMORY_ABOVE, (
        f"{found.predicted_bytes} predicted, {found.measured_bytes} measured"
    )
