"""GPTs with scanned layers, with every optimizer, loss, method and B, against one device (I1)."""

from __future__ import annotations

import pytest

from doubles.few import few
from oracle.gpt_rows import DEFAULT, SCANNED, check_x64, row_name

pytestmark = pytest.mark.usefixtures("x64", "quick_steps")


@pytest.mark.parametrize(
    "row", few(SCANNED, [row for row in DEFAULT if row in SCANNED]), ids=row_name
)
def test_scanned_gpt_means_the_same_on_any_plan(row):
    check_x64(row)
