"""Many hostile files, one after another, until one is found that is not refused as it must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from meshwise.errors import MeshwiseError

# Of each kind of file and each kind of change: in the default suite, and in the slow one.
FEW, MANY = 50, 2000
COUNTS = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
_LONGEST_ERROR = 900


def search(files: st.SearchStrategy[bytes], check: Callable[[bytes], None], count: int) -> None:
    """Check files that are drawn; the same ones each time."""

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @seed(24)
    @given(files)
    def checked(data: bytes) -> None:
        check(data)

    checked()


def check_error(error: MeshwiseError, path: Path) -> None:
    """A user must find the file, and must be able to read what is wrong in it."""
    text = str(error)
    assert str(path) in text, text[:_LONGEST_ERROR]
    assert len(text) < _LONGEST_ERROR + len(str(path)), text[:_LONGEST_ERROR]
    assert len(text.splitlines()) == 1
    assert not any(c < " " or "\x7f" <= c < "\xa0" for c in text), repr(text)
