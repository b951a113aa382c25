"""Eight virtual CPU devices for every test, set before any test can touch a device."""

from __future__ import annotations

import os
from collections.abc import Iterator

import jax
import pytest

if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64, in which parallel and single-device results agree to rounding."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def quick_compile() -> Iterator[None]:
    """LLVM without optimisations: a third of the compile time, the same HLO."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
