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
def collective_terms(kind: str, axes: tuple[MeshAxis, ...]) -> tuple[Term, ...]:
    """Return the ways to run a collective over several axes; its time is the least of them.

    A permute pairs devices across all axes at once, so only the slowest link counts.

    Args:
        kind: A name of `COLLECTIVES`.
        axes: The axes of the mesh over whose product it runs.

    Raises:
        ValueError: `kind` is not a collective.
    """
    flat = _ring(
        kind,
        math.prod(axis.size for axis in axes),
        max((axis.latency_s for axis in axes), default=0.0),
        min((axis.bytes_per_s(is_exchange=kind == ALL_TO_ALL) for axis in axes), default=math.inf),
    )
    if len(axes) < 2 or kind == PERMUTE:
        return (flat,)
    return (flat, _hierarchical(kind, axes))


def collective_time_s(kind: str, axes: tuple[int, ...], num_bytes: int, mesh: LogicalMesh) -> float:
    """Return the seconds of one collective over the mesh axes at positions `axes`.

    Args:
        kind: One of `COLLECTIVES`.
        axes: Positions in `mesh.axes`.
        num_bytes: B of docs/facts.md section 1.
        mesh: The logical mesh.

    Raises:
        ValueError: `kind` is not a collective.
    """
    terms = collective_terms(kind, tuple(mesh.axes[a] for a in axes))
    return min(term.latency_s + term.seconds_per_byte * float(num_bytes) for term in terms)
