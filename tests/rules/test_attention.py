"""Attention whose keys go round: every ring of every case, and the same in micro-batches."""

from __future__ import annotations

import pytest

from meshwise.graph.loops import enumerate_strategies
from meshwise.graph.sends import ring_axes
from oracle.every_micro_batch import check_in_time
from oracle.every_strategy import runs_of
from oracle.on_devices import check_on_devices
from rule_cases.attention import CASES
from rule_cases.case import Case

# A mesh of three axes has rings of one, two and all of them, in parts and with gathered keys.
_MESHES = ((8,), (2, 4), (2, 2, 2))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_keys_that_go_round_give_what_one_device_gives(case: Case) -> None:
    (run,) = runs_of(case.fun, case.operands, case.primitive)
    count = 0
    for sizes in _MESHES:
        rings = [s for s in enumerate_strategies(run.rule, sizes) if ring_axes(run.rule, s, sizes)]
        for strategy in rings[:: max(1, len(rings) // 4)]:
            check_on_devices(run, strategy, sizes, rtol=case.rtol)
            count += 1
    assert count


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_of_the_batch_are_cut_in_time(case: Case) -> None:
    for run in runs_of(case.fun, case.operands, case.primitive):
        check_in_time(run, rtol=case.rtol)
