"""An opaque kernel; more of them in `tests/rules/test_kernel.py`."""

from __future__ import annotations

from typing import Any

import meshwise as mw
from rule_cases.case import Case, ints


@mw.sharded_kernel(loops="abk,kc->abc", whole="b", sum="k")
def _product(x: Any, y: Any) -> Any:
    return x @ y


CASES = (Case("sharded_kernel", "a product", _product, (ints(8, 2, 4), ints(4, 8))),)
