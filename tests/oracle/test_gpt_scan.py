"""GPTs with scanned layers, with every optimizer, loss, method and B, against one device (I1)."""

from __future__ import annotations

import pytest

from oracle.gpt_rows import COVERING, DEAR, check_x64, row_name

pytestmark = pytest.mark.usefixtures("x64", "quick_steps")


SCANNED = [row for row in COVERING if row[0] == "scan"]
# One of the dear ones, a random decision, always.
SLOW = [row for row in DEAR if row != DEAR[-1]]


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.slow if row in SLOW else []) for row in SCANNED],
    ids=row_name,
)
def test_scanned_gpt_means_the_same_on_any_plan(row):
    check_x64(row)
