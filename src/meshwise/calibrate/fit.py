"""From measured times to the numbers of the cost model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from meshwise.cluster.collectives import collective_terms
from meshwise.cluster.host import Link
from meshwise.cluster.mesh import MeshAxis
from meshwise.cluster.profile import CollectivePoint, MatmulPoint, MemoryPoint


def dense_rates(points: Sequence[MatmulPoint]) -> tuple[tuple[str, float], ...]:
    """FLOP/s by dtype, of the largest product of each."""
    largest: dict[str, MatmulPoint] = {}
    for point in points:
        if point.dtype not in largest or point.size > largest[point.dtype].size:
            largest[point.dtype] = point
    return tuple(sorted((dtype, p.flop / p.seconds) for dtype, p in largest.items()))


def dense_times(
    points: Sequence[MatmulPoint],
) -> tuple[tuple[str, tuple[tuple[float, float], ...]], ...]:
    """Seconds of products by dtype and FLOP; a larger product never takes less time."""
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
    """Bytes a second of the largest pass, which no cache holds."""
    largest = max(points, key=lambda point: point.num_bytes)
    return largest.num_bytes / largest.seconds


def link_of(points: Sequence[CollectivePoint]) -> Link:
    """Latency and bandwidth with the least squares of relative errors over all collectives.

    The time of a collective is `a latency_s + b B / bytes_per_s` with a and b of its ring (FACTS
    section 1), so that `1/bytes_per_s` and the latency are a linear fit, both zero or more.
    """
    rows: list[tuple[float, float]] = []
    for point in points:
        axis = MeshAxis(name="x", size=point.group_size, latency_s=1.0, link_bytes_per_s=1.0)
        (term,) = collective_terms(point.kind, (axis,))
        volume = term.seconds_per_byte * point.num_bytes
        rows.append((term.latency_s / point.seconds, volume / point.seconds))
    matrix = np.asarray(rows)
    # Hops and bytes differ by many orders of magnitude.
    scale = matrix.max(axis=0)
    latency_s, seconds_per_byte = nnls(matrix / scale, np.ones(len(rows)))[0] / scale
    if not seconds_per_byte > 0:
        # Nothing grew with the bytes: the bandwidth of the one that moved most is a lower bound.
        seconds_per_byte = 1 / max(volume for _, volume in rows)
    return Link(latency_s=float(latency_s), bytes_per_s=float(1 / seconds_per_byte))


def predicted_s(point: CollectivePoint, link: Link) -> float:
    """What the cost model says of a measured collective."""
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
