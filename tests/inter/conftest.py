"""Helpers of these tests lie next to them."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]


@pytest.fixture(autouse=True, scope="session")
def _kernels(compiled_kernels: None) -> None:
    """Compilation belongs to no test."""
