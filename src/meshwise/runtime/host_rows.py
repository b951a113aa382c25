"""A batch of which this process has some rows: those that its own devices take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Sharding

from meshwise.errors import DataError

# Rows from the first to the one behind the last; a tuple of spans ascends, and none meet.
Span: TypeAlias = tuple[int, int]


class HostRows(jax.ShapeDtypeStruct):
    """The shape and dtype of a whole batch leaf, with the values of some of its rows in NumPy.

    Attributes:
        dim: The batch dim.
        pieces: The first row of each run of rows, and the rows; ascending, with gaps between.
        name: What messages call the leaf.
    """

    __slots__ = ("dim", "name", "pieces")

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        *,
        dim: int,
        pieces: Sequence[tuple[int, np.ndarray[Any, Any]]],
        name: str = "a batch leaf",
    ) -> None:
        super().__init__(tuple(shape), dtype)
        self.dim = dim
        self.pieces = tuple(pieces)
        self.name = name

    # A shape equals others with the same numbers; values are told apart as arrays are.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        told = f"rows {text_of_spans(self.spans)} of {self.shape[self.dim]}"
        return f"HostRows({self.name}: {self.dtype}{list(self.shape)}, {told})"

    @property
    def spans(self) -> tuple[Span, ...]:
        """The rows that are here."""
        return tuple((first, first + part.shape[self.dim]) for first, part in self.pieces)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Return a box of the leaf, as JAX asks for what lies on a device.

        Args:
            index: A slice for each dim, without steps.

        Raises:
            DataError: rows of it are not in this process.
        """
        start, stop, _ = index[self.dim].indices(self.shape[self.dim])
        for first, part in self.pieces:
            if first <= start and stop <= first + part.shape[self.dim]:
                rows = slice(start - first, stop - first)
                return part[(*index[: self.dim], rows, *index[self.dim + 1 :])]
        raise DataError(
            f"process {jax.process_index()} needs rows {start} to {stop} of {self.name} for its "
            f"devices, and has rows {text_of_spans(self.spans)}; pass batches of a loader that was "
            "made by this step for arguments of these shapes"
        )

    def whole(self) -> np.ndarray[Any, Any]:
        """Return the leaf.

        Raises:
            DataError: rows of it are not in this process.
        """
        return self[(slice(None),) * len(self.shape)]

    def between(self, start: int, stop: int) -> HostRows:
        """Return what is here of a run of rows, counted from its first row.

        Args:
            start: The first row.
            stop: The one behind the last.
        """
        shape = (*self.shape[: self.dim], stop - start, *self.shape[self.dim + 1 :])
        pieces: list[tuple[int, np.ndarray[Any, Any]]] = []
        for (first, last), (_, part) in zip(self.spans, self.pieces, strict=True):
            low, high = max(first, start), min(last, stop)
            if low < high:
                rows = (*[slice(None)] * self.dim, slice(low - first, high - first))
                pieces.append((low - start, part[rows]))
        return HostRows(shape, self.dtype, dim=self.dim, pieces=pieces, name=self.name)


def rows_on_devices(sharding: Sharding, shape: Sequence[int], dim: int) -> tuple[Span, ...]:
    """Return the rows of an array that devices of this process hold.

    Args:
        sharding: The sharding of the array.
        shape: Its shape.
        dim: The dim of the rows.
    """
    indices: Mapping[Any, Any] = sharding.addressable_devices_indices_map(tuple(shape))
    found = (index[dim].indices(shape[dim]) for index in indices.values())
    return merged((start, stop) for start, stop, _ in found)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same rows as spans that ascend and do not meet.

    Args:
        spans: Spans in any order, which may overlap.
    """
    found: list[Span] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return tuple(found)


def text_of_spans(spans: Sequence[Span]) -> str:
    """Return spans as text, as `0 to 4, 8 to 12`, or `none`."""
    return ", ".join(f"{start} to {stop}" for start, stop in spans) or "none"
