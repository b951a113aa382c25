"""Every ruled primitive in micro-batches equals the primitive on the full batch."""

from __future__ import annotations

import jax
import pytest

from oracle.every_micro_batch import check_in_time
from oracle.every_strategy import runs_of
from rule_cases.case import Case
from rule_cases.table import CASES

_CHEAP = [case for case in CASES if not case.costly]
_COSTLY = [case for case in CASES if case.costly]


@pytest.mark.slow
@pytest.mark.parametrize("case", _COSTLY, ids=str)
def test_micro_batches_of_costly_primitives(case: Case) -> None:
    test_micro_batches_equal_the_primitive(case)


@pytest.mark.parametrize("case", _CHEAP, ids=str)
def test_micro_batches_equal_the_primitive(case: Case) -> None:
    with jax.enable_x64(case.x64):
        for run in runs_of(case.fun, case.operands, case.primitive):
            check_in_time(run, rtol=case.rtol)
