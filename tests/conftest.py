"""Eight virtual CPU devices for every test, set before any test can touch a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import meshwise.spmd.program as lowering
from xla_options import QUICK, USUAL

# What tests compile beside the steps of Meshwise: references and single operators above all.
os.environ["XLA_FLAGS"] = " ".join(
    [*(f"--{name}={str(value).lower()}" for name, value in QUICK.items())]
    + [os.environ.get("XLA_FLAGS", "")]
)
if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64, in which parallel and single-device results agree to rounding."""
    with jax.enable_x64(True):
        yield


def _compile_with(patch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    """Let parallel steps be compiled for CPUs with more options."""
    options = lowering.compile_options

    def with_more(platform: str, num_devices: int) -> dict[str, Any]:
        return options(platform, num_devices) | (more if platform == "cpu" else {})

    patch.setattr(lowering, "compile_options", with_more)


@pytest.fixture(scope="session", autouse=True)
def _compiled_as_users_compile() -> Iterator[None]:
    """Parallel steps are compiled as users compile them, unless a test asks for `quick_compile`."""
    with pytest.MonkeyPatch.context() as patch:
        _compile_with(patch, USUAL)
        yield


@pytest.fixture
def quick_compile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """LLVM without optimisations: a fifth of the compile time, the same collectives.

    Fusions differ from those of a user's program: not for tests of memory or of FLOP.
    """
    _compile_with(monkeypatch, QUICK)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
