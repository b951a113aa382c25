"""The compiled part of the reductions: which choices of a node others beat."""

# pyright: basic
# Kernels: Numba checks their types when it compiles them.
from __future__ import annotations

from typing import Any

import numpy as np

from meshwise.intra.solver.compiled import kernel

Array = Any


@kernel
def add_dearest(worst: Array, matrix: Array) -> None:
    """Add to [i, j] by how much choice i may be dearer than j, over a neighbour's choices.

    Where neither i nor j can be taken with a neighbour's choice, that one does not matter.

    Args:
        worst: (choices, choices); changed.
        matrix: Cost of (choice, neighbour's choice).
    """
    count, others = matrix.shape
    for i in range(count):
        for j in range(count):
            most = -np.inf
            for k in range(others):
                # inf - inf compares as false.
                more = matrix[i, k] - matrix[j, k]
                if more > most:
                    most = more
            worst[i, j] += most


@kernel
def not_beaten(worst: Array) -> Array:
    """Choices that no other one that stays beats; of equal ones the first stays.

    Args:
        worst: By how much choice i may be dearer than j, (i, j).
    """
    count = len(worst)
    stays = np.ones(count, np.bool_)
    for j in range(count):
        for i in range(count):
            is_beaten = worst[i, j] < 0.0 or (worst[i, j] == 0.0 and i < j)
            if i != j and stays[i] and is_beaten:
                stays[j] = False
                break
    return stays
