"""Unrolled GPTs with every optimizer, loss, method and B, against one device (I1).

Scanned ones are in `test_gpt_scan.py`, other dtypes in `test_gpt_precision.py`: files share no
reference, so that they may run at once.
"""

from __future__ import annotations

import itertools

import pytest

import meshwise as mw
from doubles.few import few
from oracle.compare import assert_same_x64
from oracle.covering import pairwise
from oracle.gpt_problems import Case
from oracle.gpt_rows import (
    ALL,
    CHEAP,
    COVERING,
    DEFAULT,
    DRAWN,
    MESHES,
    METHODS,
    NUM_MICROBATCHES,
    QUICK,
    TWO_LAYERS,
    UNROLLED,
    Random,
    case_reference,
    check_x64,
    row_name,
    run_case,
)

pytestmark = pytest.mark.usefixtures("x64", "quick_steps")


@pytest.mark.parametrize(
    "row", few(UNROLLED, [row for row in DEFAULT if row in UNROLLED]), ids=row_name
)
def test_unrolled_gpt_means_the_same_on_any_plan(row):
    check_x64(row, num_layers=2 if row == TWO_LAYERS else 1)


@pytest.mark.slow
@pytest.mark.parametrize("row", DRAWN, ids=row_name)
def test_gpt_means_the_same_on_combinations_drawn_by_seed(row):
    check_x64(row)


@pytest.mark.slow
@pytest.mark.parametrize("b", [1, 2])
def test_plain_value_and_grad_gives_the_same(b):
    case = Case("unrolled", "adam", True, "mean", False, "float64", "float64")
    plain = case._replace(plain=True)
    assert_same_x64(case_reference(case), run_case(plain, mw.IntraOp((2, 4)), b))


def test_the_covering_rows_cover_every_pair():
    def pairs(rows):
        return {p for row in rows for p in itertools.combinations(enumerate(map(str, row)), 2)}

    assert pairs(QUICK) <= pairs(COVERING)
    assert {row[5] for row in COVERING} == set(METHODS)
    drawn = [row for row in COVERING if isinstance(row[5], Random)]
    assert {row[5].mesh_shape for row in drawn} == set(MESHES)
    assert {row[6] for row in drawn} == set(NUM_MICROBATCHES)
    assert set(COVERING) <= set(ALL)
    assert len({row[:5] for row in COVERING}) <= 8


def test_the_rows_of_the_default_run_have_every_problem_method_and_number_of_micro_batches():
    assert {row[:5] for row in DEFAULT} == {row[:5] for row in COVERING}
    assert {row[5] for row in DEFAULT} >= set(CHEAP)
    assert any(isinstance(row[5], Random) for row in DEFAULT)
    assert {row[6] for row in DEFAULT} == set(NUM_MICROBATCHES)


def test_covering_knows_what_is_covered():
    rows = list(itertools.product("ab", "cd"))
    assert pairwise(rows, known=rows) == []
    assert len(pairwise(rows)) == 4
