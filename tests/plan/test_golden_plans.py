"""The plans in files are what is planned today, and read back."""

from __future__ import annotations

import sys

import pytest

import meshwise as mw
from doubles.golden_plans import GOLDEN, PLANS, golden_plan
from doubles.pinned_jax import IS_PINNED_JAX


@pytest.fixture(autouse=True)
def no_second_process() -> None:
    """These are planned by two processes, as users have it."""


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.skipif(not IS_PINNED_JAX, reason="files are of another JAX")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="its sums of floats end in other digits")
@pytest.mark.parametrize("name", PLANS)
def test_a_golden_plan_is_what_is_planned(name: str, golden) -> None:
    golden(f"plans/{name}.json", PLANS[name]().to_json())


@pytest.mark.parametrize("name", PLANS)
def test_a_golden_plan_reads_back(name: str) -> None:
    text = (GOLDEN / "plans" / f"{name}.json").read_text(encoding="utf-8")
    assert mw.Plan.from_json(text).to_json() == text
    assert golden_plan(name).explain()
