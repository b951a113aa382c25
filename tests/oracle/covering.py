"""Small sets of rows in which every pair of values of two factors occurs together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

Row = tuple[Any, ...]


def _pairs(row: Row) -> set[Any]:
    return {(i, j, row[i], row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


def pairwise(candidates: Sequence[Row], known: Sequence[Row] = ()) -> list[Row]:
    """Rows out of `candidates` that hold every pair that occurs in them; greedy, deterministic.

    Args:
        candidates: Rows to choose from.
        known: Rows whose pairs are covered already.
    """
    pairs = {row: _pairs(row) for row in candidates}
    missing = set().union(*pairs.values()) - set().union(*(_pairs(row) for row in known), set())
    chosen: list[Row] = []
    while missing:
        best = max(candidates, key=lambda row: len(pairs[row] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return chosen
