"""What a plan says of a model is what XLA compiles: collectives, FLOP, memory (DESIGN I2)."""

from __future__ import annotations

import itertools

import pytest
from benchmarks.fidelity import compare_step

import meshwise as mw
from meshwise.methods import Method
from model_configs import CONFIGS
from model_steps import model_step
from oracle.parallel import CLUSTER
from oracle.test_fidelity import FLOP_ERROR, MOST_ABOVE, MOST_BELOW

METHODS: tuple[Method, ...] = (
    mw.DataParallel(),
    mw.Zero3(),
    mw.Megatron(2, 4),
    mw.IntraOp((8,)),
    mw.IntraOp((2, 4)),
)
ALL = list(itertools.product(CONFIGS, METHODS))


def _name(row: tuple[str, Method]) -> str:
    shape = getattr(row[1], "mesh_shape", None)
    words = (row[0], type(row[1]).__name__, *(map(str, shape) if shape else ()))
    return "-".join(words)


QUICK = [("llama", METHODS[0]), ("moe", METHODS[4])]


@pytest.mark.parametrize(
    "row",
    [pytest.param(r, marks=[] if r in QUICK else [pytest.mark.slow]) for r in ALL],
    ids=list(map(_name, ALL)),
)
def test_plan_of_a_model_is_what_is_compiled(row: tuple[str, Method]) -> None:
    name, method = row
    step, state, batch = model_step(*CONFIGS[name])
    found = compare_step(name, mw.parallelize(step, method=method, cluster=CLUSTER), state, batch)
    assert found.wrong_collectives == {}
    assert found.flop_ratio == pytest.approx(1, abs=FLOP_ERROR)
    assert 1 - MOST_BELOW <= found.memory_ratio <= 1 + MOST_ABOVE, (
        f"{found.predicted_bytes} predicted, {found.measured_bytes} measured"
    )
