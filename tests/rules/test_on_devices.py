"""Local forms under `shard_map`, where only devices can tell, and a sample of the others."""

from __future__ import annotations

import pytest

from meshwise.graph.loops import enumerate_strategies
from oracle.every_strategy import MESHES, runs_of, sampled
from oracle.on_devices import check_on_devices
from rule_cases.case import Case
from rule_cases.table import CASES, FORMS, ON_DEVICES

# `test_every_strategy` runs these without `shard_map`, `oracle/test_kernels` in steps.
SLOW = {"pallas_call: splash, equal heads", "pallas_call: splash, grouped heads"}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow) if str(c) in SLOW else c for c in ON_DEVICES],
    ids=str,
)
def test_strategies_on_devices(case: Case) -> None:
    for run in runs_of(case.fun, case.operands, case.primitive):
        for sizes in MESHES:
            strategies = sampled(list(enumerate_strategies(run.rule, sizes)), 4)
            check_on_devices(run, strategies, sizes, rtol=case.rtol)


@pytest.mark.parametrize("case", [c for c in CASES if str(c) in FORMS], ids=str)
def test_a_sample_on_devices(case: Case) -> None:
    (run,) = runs_of(case.fun, case.operands, case.primitive)
    for sizes in MESHES:
        strategies = sampled(list(enumerate_strategies(run.rule, sizes)), 5)
        check_on_devices(run, strategies, sizes, rtol=case.rtol)


def test_the_sample_exists() -> None:
    assert set(FORMS) <= {str(case) for case in CASES}
