"""Times of collectives on one or several axes of a logical mesh.

Every time is the least of a few terms that are linear in the bytes, so that planning can price
thousands of collectives at once; `collective_time_s` and the vectorised prices of `resharding/`
use the same terms.

Source: docs/facts.md section 1 (ring times; B is the tensor as its group sees it whole).
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from meshwise.cluster.device_kind import Bucket, bucket_of
from meshwise.cluster.mesh import LogicalMesh, MeshAxis

ALL_REDUCE = "all-reduce"
REDUCE_SCATTER = "reduce-scatter"
ALL_GATHER = "all-gather"
ALL_TO_ALL = "all-to-all"
PERMUTE = "permute"
COLLECTIVES = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, PERMUTE)


class Term(NamedTuple):
    """One way to run a collective: `latency_s + seconds_per_byte * B`."""

    latency_s: float
    seconds_per_byte: float


def _ring(kind: str, size: int, latency_s: float, link_bytes_per_s: float) -> Term:
    """Return one ring of `size` devices."""
    hops = size - 1
    if hops <= 0:
        return Term(0.0, 0.0)
    match kind:
        case "all-gather" | "reduce-scatter":
            return Term(hops * latency_s, hops / size / link_bytes_per_s)
        case "all-reduce":
            return Term(2 * hops * latency_s, 2 * hops / size / link_bytes_per_s)
        case "all-to-all":
            return Term(hops * latency_s, hops / size**2 / link_bytes_per_s)
        case "permute":
            return Term(latency_s, 1 / (size * link_bytes_per_s))
        case _:
            raise ValueError(f"not a collective: {kind!r}; known are {', '.join(COLLECTIVES)}")


def _hierarchical(kind: str, axes: tuple[MeshAxis, ...]) -> Term:
    """Return the way axis by axis: bytes shrink along the fastest before slow ones see them."""
    size = math.prod(axis.size for axis in axes)
    latency_s = 0.0
    seconds_per_byte = 0.0
    share = 1.0
    for axis in sorted(axes, key=lambda axis: (-axis.link_bytes_per_s, axis.latency_s)):
        rate = axis.bytes_per_s(is_exchange=kind == ALL_TO_ALL)
        term = _ring(kind, axis.size, axis.latency_s, rate)
        # All-to-all moves the same bytes in each phase; its group sees n_i shards of B / n.
        part = axis.size / size if kind == ALL_TO_ALL else share
        latency_s += term.latency_s
        seconds_per_byte += term.seconds_per_byte * part
        share /= axis.size
    return Term(latency_s, seconds_per_byte)


@functools.lru_cache(maxsize=4096)
def collective_terms(
    kind: str, axes: tuple[MeshAxis, ...], bucket: Bucket | None = None
) -> tuple[Term, ...]:
    """Return the ways to run a collective over several axes; its time is the least of them.

    A permute pairs devices across all axes at once, so only the slowest link counts.

    In a bucket, one of B bytes pays `1 / sharers + B / num_bytes` of a latency, at most all of
    it: all sharers together pay one, and one more for each bucket that they fill.  Compilers do
    not merge all-to-alls and permutes.

    Args:
        kind: A name of `COLLECTIVES`.
        axes: The axes of the mesh over whose product it runs.
        bucket: The bucket in which it is sent; None if it runs alone.

    Raises:
        ValueError: `kind` is not a collective.
    """
    flat = _ring(
        kind,
        math.prod(axis.size for axis in axes),
        max((axis.latency_s for axis in axes), default=0.0),
        min((axis.bytes_per_s(is_exchange=kind == ALL_TO_ALL) for axis in axes), default=math.inf),
    )
    ways = (flat,) if len(axes) < 2 or kind == PERMUTE else (flat, _hierarchical(kind, axes))
    if bucket is None or kind in (ALL_TO_ALL, PERMUTE):
        return ways
    return (*ways, *(_shared(way, bucket) for way in ways))


def _shared(way: Term, bucket: Bucket) -> Term:
    """Return a way with its share of the latency of a bucket."""
    return Term(
        way.latency_s / bucket.sharers,
        way.seconds_per_byte + way.latency_s / bucket.num_bytes,
    )


def collective_time_s(
    kind: str,
    axes: tuple[int, ...],
    num_bytes: int,
    mesh: LogicalMesh,
    *,
    sharers: int = 0,
) -> float:
    """Return the seconds of one collective over the mesh axes at positions `axes`.

    Args:
        kind: One of `COLLECTIVES`.
        axes: Positions in `mesh.axes`.
        num_bytes: B of docs/facts.md section 1.
        mesh: The logical mesh.
        sharers: Tensors whose collectives compilers merge with it; 0 if it runs alone.

    Raises:
        ValueError: `kind` is not a collective.
    """
    bucket = bucket_of(mesh.device, sharers)
    terms = collective_terms(kind, tuple(mesh.axes[a] for a in axes), bucket)
    return min(term.latency_s + term.seconds_per_byte * float(num_bytes) for term in terms)
