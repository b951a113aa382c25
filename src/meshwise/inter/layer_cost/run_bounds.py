"""Bounds of runs of layers on one mesh, from those of single layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.inter.layer_cost.layer_record import LayerBounds
from meshwise.inter.layer_cost.run_costs import least_sums
from meshwise.kernels.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """What no plan of a run of layers is below; arrays over (first layer, last layer).

    Attributes:
        loop_s: Seconds of all micro-batches, and of gathering what other stages send.
        resident_bytes: Held all the time by one device.
    """

    loop_s: Floats
    resident_bytes: Floats


def bounds_of_runs(layers: Sequence[LayerBounds | None]) -> RunBounds | None:
    """What no run is below.

    Args:
        layers: Bounds of each layer, None where it has no plan.

    Returns:
        None if no layer has a plan; runs over one that has none are infinite.
    """
    if not any(layers):
        return None
    shape = (len(layers), len(layers))
    found = RunBounds(
        loop_s=np.full(shape, np.inf),
        resident_bytes=np.full(shape, np.inf),
    )
    for at, some in _segments(layers):
        found.loop_s[at, at] = least_sums(some)
        found.resident_bytes[at, at] = _run_sums([b.resident_bytes for b in some])
    return found


def _segments(
    layers: Sequence[LayerBounds | None],
) -> Iterator[tuple[slice, list[LayerBounds]]]:
    """Where layers that have plans follow each other: no run goes over one that has none."""
    first = 0
    for there, group in itertools.groupby(layers, key=lambda b: b is not None):
        some = list(group)
        if there:
            yield slice(first, first + len(some)), [b for b in some if b is not None]
        first += len(some)


def _run_sums(values: Sequence[float]) -> Floats:
    """For (first, last) the sum of the values from first to last; infinite where last < first."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    sums = total[None, 1:] - total[:-1, None]
    return np.where(np.tri(len(values), k=-1, dtype=np.bool_), np.inf, sums)
