"""Parameters of which the default run takes few, and `pytest -m slow` the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Parameters; those that are not kept are `slow`, as they repeat what the kept ones prove."""
    found = list(values)
    assert all(value in found for value in kept)
    return [v if v in kept else pytest.param(v, marks=pytest.mark.slow) for v in found]


def few_rows(rows: Iterable[tuple[Any, ...]], kept: Collection[tuple[Any, ...]]) -> list[Any]:
    """As `few`, for several parameters at once."""
    found = list(rows)
    assert all(row in found for row in kept)
    marks = [[] if row in kept else [pytest.mark.slow] for row in found]
    return [pytest.param(*row, marks=more) for row, more in zip(found, marks, strict=True)]


def few_or_all(some: int, every: int) -> list[Any]:
    """Two numbers of cases: some for the default run, all of them for the slow one."""
    return [some, pytest.param(every, marks=pytest.mark.slow)]
