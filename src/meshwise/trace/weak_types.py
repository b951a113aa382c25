"""Weak types: arrays that give way to the dtype of what they meet, as numbers of Python do."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import jax

from meshwise.jax_compat.jaxprs import weakly_typed

_is_weak_array = attrgetter("aval.weak_type")
_weakened = jax.jit(weakly_typed)


def weak_types(leaves: Sequence[Any]) -> tuple[bool, ...]:
    """Find out which of the arguments of a call are weakly typed; every call asks, so it is quick.

    Args:
        leaves: The flat arguments.

    Returns:
        For each of them whether it is.
    """
    try:
        return tuple(map(_is_weak_array, leaves))
    except AttributeError:
        return tuple(map(_is_weak, leaves))


def _is_weak(leaf: Any) -> bool:
    aval = getattr(leaf, "aval", None)
    return type(leaf) in (int, float, complex) if aval is None else aval.weak_type


def with_weak_types(results: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return the results, those at the positions weakly typed.

    Args:
        results: Arrays.
        positions: Mostly of none, else of a few scalars.
    """
    found = list(results)
    for position in positions:
        if not _is_weak(found[position]):
            found[position] = _weakened(found[position])
    return found
