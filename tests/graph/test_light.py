"""Operators that stay alone are named as JAX names their primitives."""

from __future__ import annotations

from meshwise.graph.light import ALONE
from meshwise.rules.table import RULES


def test_operators_that_stay_alone_have_rules() -> None:
    assert set(RULES) >= ALONE
