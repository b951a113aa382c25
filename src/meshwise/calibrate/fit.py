"""From measured times to the numbers of the cost model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from meshwise.cluster.collectives import collective_terms
from meshwise.cluster.description.profile import CollectivePoint, MatmulPoint, MemoryPoint
from meshwise.cluster.host import Link
from meshwise.cluster.mesh import MeshAxis


def dense_rates(points: Sequence[MatmulPoint]) -> tuple[tuple[str, float], ...]:
    """Return FLOP/s by dtype, of the largest product of each."""
    largest: dict[str, MatmulPoint] = {}
    for point in points:
        if point.dtype not in largest or point.size > largest[point.dtype].size:
            largest[point.dtype] = point
    return tuple(sorted((dtype, p.flop / p.seconds) for dtype, p in largest.items()))


def dense_times(
    points: Sequence[MatmulPoint],
) -> tuple[tuple[str, tuple[tuple[float, float], ...]], ...]:
    """Return the seconds of products by dtype and FLOP; a larger product never takes less time."""
    by_dtype: dict[str, dict[float, float]] = {}
    for point in points:
        by_dtype.setdefault(point.dtype, {})[point.flop] = point.seconds
    return tuple(
        (dtype, tuple(zip(sorted(times), _ascending(times), strict=True)))
        for dtype, times in sorted(by_dtype.items())
    )


def _ascending(times: dict[float, float]) -> tuple[float, ...]:
    return tuple(itertools.accumulate((times[flop] for flop in sorted(times)), max))


def memory_rate(points: Sequence[MemoryPoint]) -> float:
    """Return the bytes a second of the largest pass, which no cache holds."""
    largest = max(points, key=lambda point: point.num_bytes)
    return largest.num_bytes / largest.seconds


def link_of(points: Sequence[CollectivePoint]) -> Link:
    """Return latency and bandwidth with the least squares of log(predicted / measured).

    The time of a collective is `a latency_s + b B / bytes_per_s` with a and b of its ring
    (docs/facts.md section 1).  Twice as long counts as much as half as long, for small tensors as
    for large ones.

    Args:
        points: Measured collectives, at least one.
    """
    rows: list[tuple[float, float]] = []
    for point in points:
        axis = MeshAxis(name="x", size=point.group_size, latency_s=1.0, link_bytes_per_s=1.0)
        (term,) = collective_terms(point.kind, (axis,))
        rows.append((term.latency_s, term.seconds_per_byte * point.num_bytes))
    matrix = np.asarray(rows)
    seconds = np.asarray([point.seconds for point in points])
    # Each alone as fast as the quickest collective allows: hops and bytes differ by many orders.
    scale = (seconds[:, None] / matrix).min(axis=0)

    def errors(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(matrix @ (scale * np.exp(logs)) / seconds)

    # Never below a billionth of that, where nothing would change any more.
    found = least_squares(errors, np.zeros(2), bounds=(-20, 20))
    latency_s, seconds_per_byte = scale * np.exp(found.x)
    return Link(latency_s=float(latency_s), bytes_per_s=float(1 / seconds_per_byte))


def predicted_s(point: CollectivePoint, link: Link) -> float:
    """Return the seconds that the cost model says of a measured collective.

    Args:
        point: The collective.
        link: Latency and bandwidth.
    """
    axis = MeshAxis(
        name="x",
        size=point.group_size,
        latency_s=link.latency_s,
        link_bytes_per_s=link.bytes_per_s,
    )
    return min(
        term.latency_s + term.seconds_per_byte * point.num_bytes
        for term in collective_terms(point.kind, (axis,))
    )
