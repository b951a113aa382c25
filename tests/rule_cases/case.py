"""One case of the rule tests: a primitive in a small function, with operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A function that traces to a primitive.

    Attributes:
        primitive: Name of the primitive under test; each of its equations is checked.
        name: What is special; with the primitive it is unique.
        fun: The function.
        operands: Its arguments; small-integer values, so that sums are exact in any order.
        rtol: Relative tolerance, for functions whose last bit depends on how XLA vectorises.
        x64: Trace and run with 64-bit types.
        costly: Slow to compile or one of many, and its rule and local form are those of other
            cases: `slow` tests run it on all meshes and in micro-batches, the others on one mesh.
    """

    primitive: str
    name: str
    fun: Callable[..., Any]
    operands: tuple[Any, ...]
    rtol: float = 0.0
    x64: bool = False
    costly: bool = False

    def __str__(self) -> str:
        return f"{self.primitive}: {self.name}"


def ints(*shape: int, dtype: Any = np.float32, low: int = -6, high: int = 7) -> Any:
    """Small integers that differ between neighbours, in any dtype; the same in each run."""
    rng = np.random.default_rng((*shape, low % 97, high % 97))
    values = rng.integers(low, high, shape)
    return np.asarray(values).astype(dtype)


def floats(*shape: int, low: float = 0.1, high: float = 0.9) -> Any:
    """Floats in a range."""
    rng = np.random.default_rng(shape)
    return rng.uniform(low, high, shape).astype(np.float32)


def bools(*shape: int) -> Any:
    """Booleans."""
    return ints(*shape) > 0
