"""GPTs with scanned layers, with every optimizer, loss, method and B, against one device (I1)."""

from __future__ import annotations

import pytest

from oracle.gpt_rows import COVERING, check_x64, row_name

pytestmark = pytest.mark.usefixtures("x64", "quick_steps")


@pytest.mark.parametrize("row", [row for row in COVERING if row[0] == "scan"], ids=row_name)
def test_scanned_gpt_means_the_same_on_any_plan(row):
    check_x64(row)
