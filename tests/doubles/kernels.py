"""What Numba made of a kernel, which a light kernel holds for later."""

from __future__ import annotations

import inspect
from typing import Any


def compiled(kernel: Any) -> Any:
    """The compiled form of a kernel, with its signatures."""
    held = inspect.getclosurevars(kernel).nonlocals if inspect.isfunction(kernel) else {}
    return held.get("compiled", kernel)
