"""GPTs with scanned layers, with every optimizer, loss, method and B, against one device (I1)."""

from __future__ import annotations

import pytest

from doubles.few import few
from oracle.gpt_rows import COVERING, DEAR, check_x64, first_of_each, row_name

pytestmark = pytest.mark.usefixtures("x64", "quick_steps")


SCANNED = [row for row in COVERING if row[0] == "scan"]
# One of the dear ones, a random decision, always.
QUICK = [*first_of_each([row for row in SCANNED if row not in DEAR], [DEAR[-1]]), DEAR[-1]]


@pytest.mark.parametrize("row", few(SCANNED, QUICK), ids=row_name)
def test_scanned_gpt_means_the_same_on_any_plan(row):
    check_x64(row)
