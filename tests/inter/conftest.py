"""Fixtures of the tests of the planner across meshes."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _kernels(compiled_kernels: None) -> None:
    """Compilation belongs to no test."""
