"""Whether an array is still being made."""

from __future__ import annotations

from typing import Any


def is_there(array: Any) -> bool:
    """Return whether devices have made an array, or it is needed no more.

    Args:
        array: A `jax.Array`, or what failed to become one.
    """
    try:
        return array.is_deleted() or array.is_ready()
    except RuntimeError:  # It was donated in between.
        return True
