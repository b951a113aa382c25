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
    COVERING,
    DRAWN,
    MESHES,
    METHODS,
    NUM_MICROBATCHES,
    QUICK,
    Random,
    case_reference,
    check_x64,
    first_of_each,
    row_name,
    run_case,
)

pytestmark = pytest.mark.usefixtures("x64", "quick_steps")


# Scanned GPTs have two layers in every row, unrolled ones where the optimiser plans them once.
UNROLLED = [row for row in COVERING if row[0] == "unrolled"]
TWO_LAYERS = next(row for row in UNROLLED if row[5] == mw.IntraOp((2, 4)))


@pytest.mark.parametrize(
    "row", few(UNROLLED, {*first_of_each(UNROLLED, [TWO_LAYERS]), TWO_LAYERS}), ids=row_name
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


def test_covering_knows_what_is_covered():
    rows = list(itertools.product("ab", "cd"))
    assert pairwise(rows, known=rows) == []
    assert len(pairwise(rows)) == 4
