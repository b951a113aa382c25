"""The compiled part of the reductions: choices that others beat, and folding by (min,+)."""

# pyright: basic
# Kernels: Numba checks their types when it compiles them.
from __future__ import annotations

from typing import Any

import numpy as np

from meshwise.kernels.compiler import kernel

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


@kernel
def drop_impossible(possible: Array, matrix: Array) -> None:
    """Take out the choices that go with none of a neighbour's.

    Args:
        possible: One of each choice; changed.
        matrix: Cost of (choice, neighbour's choice).
    """
    count, others = matrix.shape
    for i in range(count):
        if possible[i]:
            found = False
            for k in range(others):
                if np.isfinite(matrix[i, k]):
                    found = True
                    break
            possible[i] = found


@kernel
def folded_between(cost: Array, left: Array, right: Array) -> Array:
    """What a node costs at best between two neighbours, (left choice, right choice).

    Args:
        cost: Of each choice.
        left: Cost of (choice, left neighbour's choice).
        right: Cost of (choice, right neighbour's choice).
    """
    through = np.full((left.shape[1], right.shape[1]), np.inf)
    for i in range(len(cost)):
        for a in range(left.shape[1]):
            before = cost[i] + left[i, a]
            if before == np.inf:
                continue
            for b in range(right.shape[1]):
                total = before + right[i, b]
                if total < through[a, b]:
                    through[a, b] = total
    return through
