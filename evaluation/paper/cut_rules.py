"""Rules that cut a row of things into runs without looking at communication or devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from meshwise.inter.clustering.operator_clustering import Ranges


def equal_count(num_items: int, num_runs: int) -> Ranges:
    """Runs of equal length, or lengths that differ by one.

    Of operators it is the rule "equal operator", of layers "equal layer".

    Raises:
        ValueError: there are fewer items than runs.

    Source: Alpa section 8.3.
    """
    if not 1 <= num_runs <= num_items:
        raise ValueError(f"{num_items} items cannot be cut into {num_runs} runs")
    bounds = [num_items * r // num_runs for r in range(num_runs + 1)]
    return _ranges(bounds)


def least_variance(costs: Sequence[float], num_runs: int) -> Ranges:
    """The runs whose summed costs vary least; where equal, the one whose last runs are longest.

    Args:
        costs: Given or estimated cost of each item.
        num_runs: How many runs, none empty.

    Raises:
        ValueError: there are fewer items than runs.

    Source: GPipe (K partitions), docs/facts.md section 4.
    """
    size = len(costs)
    if not 1 <= num_runs <= size:
        raise ValueError(f"{size} items cannot be cut into {num_runs} runs")
    before = np.concatenate(([0.0], np.cumsum(np.asarray(costs, np.float64))))
    mean = float(before[-1]) / num_runs or 1.0
    # The mean is fixed, so the variance is least where the squares of the differences are.
    square = ((before[None, :] - before[:, None]) / mean - 1.0) ** 2
    square[np.tril_indices(size + 1)] = np.inf
    least = np.full(size + 1, np.inf)
    least[0] = 0.0
    came_from: list[list[int]] = []
    for _ in range(num_runs):
        total = least[:, None] + square
        came_from.append([int(i) for i in total.argmin(axis=0)])
        least = total.min(axis=0)
    bounds = [size]
    for source in reversed(came_from):
        bounds.append(source[bounds[-1]])
    return _ranges(bounds[::-1])


def equal_operators_in_layers(operators_per_layer: Sequence[int], num_runs: int) -> Ranges:
    """Runs of layers with numbers of operators as equal as the layers allow."""
    return least_variance([float(n) for n in operators_per_layer], num_runs)


def _ranges(bounds: Sequence[int]) -> Ranges:
    return tuple((a, b - 1) for a, b in pairwise(bounds))
