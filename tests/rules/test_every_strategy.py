"""Every ruled primitive under every strategy equals the unsharded primitive."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import pytest

from meshwise.rules.elementwise import NEWER
from meshwise.rules.table import RULES
from oracle.every_strategy import MESHES, check_run, runs_of
from rule_cases.case import Case
from rule_cases.table import CASES, FORMS, ON_DEVICES

# Beyond this many strategies on one mesh they are evenly sampled; no case has as many today.
_LIMIT = 400
# The mesh of every case; those of `FORMS` run on all.  Its two axes split a loop in 2, 4 and 8, and
# two loops at once.
_TWO_AXES = ((2, 4),)
_CHEAP = [case for case in CASES if not case.costly]
_COSTLY = [case for case in CASES if case.costly]


def _check(case: Case, meshes: Sequence[tuple[int, ...]], *, twins: bool = False) -> None:
    with jax.enable_x64(case.x64):
        runs = runs_of(case.fun, case.operands, case.primitive)
        assert runs, "the function does not trace to the primitive"
        for run in runs:
            for sizes in meshes:
                assert check_run(run, sizes, limit=_LIMIT, rtol=case.rtol, twins=twins) >= 1


@pytest.mark.parametrize("case", _CHEAP, ids=str)
def test_strategies_equal_the_primitive(case: Case) -> None:
    _check(case, MESHES if str(case) in FORMS else _TWO_AXES)


@pytest.mark.parametrize("case", _COSTLY, ids=str)
def test_strategies_of_costly_primitives_on_one_axis(case: Case) -> None:
    _check(case, MESHES[:1])


@pytest.mark.slow
@pytest.mark.parametrize("case", _CHEAP, ids=str)
def test_strategies_on_all_meshes_equal_the_primitive(case: Case) -> None:
    _check(case, MESHES, twins=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", _COSTLY, ids=str)
def test_strategies_of_costly_primitives(case: Case) -> None:
    _check(case, MESHES[1:], twins=True)


def test_every_ruled_primitive_has_a_case() -> None:
    assert set(RULES) - set(NEWER) == {case.primitive for case in (*CASES, *ON_DEVICES)}


def test_case_names_are_unique() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)
