"""Pieces of a tile put together."""

from __future__ import annotations

from collections.abc import Sequence

from jax import Array, lax

from meshwise.resharding.tiles import Box


def joined(pieces: Sequence[tuple[Box, Array]]) -> Array:
    """Return what pieces are together, on one device.

    Args:
        pieces: The pieces with their places, which are cuts of a box, and cuts of those, and so on.
    """
    if len(pieces) == 1:
        return pieces[0][1]
    for dim in range(len(pieces[0][0])):
        runs = _runs(pieces, dim)
        if len(runs) > 1:
            return lax.concatenate([joined(run) for run in runs], dim)
    raise AssertionError(f"pieces at {[place for place, _ in pieces]} are no cuts of a box")


def _runs(pieces: Sequence[tuple[Box, Array]], dim: int) -> list[list[tuple[Box, Array]]]:
    """Return pieces parted where a plane across a dim goes through none of them, ascending."""
    runs: list[list[tuple[Box, Array]]] = []
    end = 0
    for piece in sorted(pieces, key=lambda p: p[0][dim]):
        start, stop = piece[0][dim]
        if not runs or start >= end:
            runs.append([])
        runs[-1].append(piece)
        end = max(end, stop)
    return runs
