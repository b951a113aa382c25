"""Threads that read batches ahead, row by row.

They are daemons: a source that never answers does not keep the process from its end.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any
from weakref import finalize

import numpy as np

from meshwise.hosts.data.order import Order
from meshwise.hosts.data.sources import Leaf, Sources
from meshwise.runtime.host_rows import HostRows, Span

# How long a batch may take before the user is told.
_TELL_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What every batch in this process has: which leaf has which rows.

    Attributes:
        leaves: The leaves of the batch.
        spans: For each of them the rows that are read.
        rows: For each row the leaves that want it: leaf -> run of rows, place in it.
    """

    leaves: tuple[Leaf, ...]
    spans: tuple[tuple[Span, ...], ...]
    rows: Mapping[int, Mapping[int, tuple[int, int]]]


def shelf_of(leaves: Sequence[Leaf], spans: Sequence[Sequence[Span]]) -> Shelf:
    """Return where the rows of a batch go.

    Args:
        leaves: The leaves of the batch.
        spans: For each of them the rows that this process takes.
    """
    rows: dict[int, dict[int, tuple[int, int]]] = {}
    for leaf, some in enumerate(spans):
        for run, (start, stop) in enumerate(some):
            for row in range(start, stop):
                rows.setdefault(row, {})[leaf] = (run, row - start)
    return Shelf(leaves=tuple(leaves), spans=tuple(map(tuple, spans)), rows=rows)


class Reading:
    """A batch while it is read."""

    def __init__(self, shelf: Shelf, first: int, num_parts: int) -> None:
        """Make room for it.

        Args:
            shelf: Which rows go where.
            first: The place of its first row in the order of the examples.
            num_parts: In how many parts it is read.
        """
        self.first = first
        self._shelf = shelf
        self._pieces = [
            [np.empty(_run_shape(leaf, span), leaf.dtype) for span in spans]
            for leaf, spans in zip(shelf.leaves, shelf.spans, strict=True)
        ]
        self._error: BaseException | None = None
        self._is_unwanted = False
        self._left = itertools.count(num_parts - 1, -1)
        self._done = threading.Event()

    def read(self, rows: Sequence[int], order: Order, sources: Sources) -> None:
        """Read a part, in one of the threads; what goes wrong is kept.

        Args:
            rows: The rows of the part.
            order: The order of the examples.
            sources: Where they come from.
        """
        for row in rows:
            if self._is_unwanted or self._error is not None:
                break
            example = order.example(self.first + row)
            wanted = self._shelf.rows[row]
            try:
                for leaf, value in sources.read(example, wanted).items():
                    run, place = wanted[leaf]
                    before = (slice(None),) * self._shelf.leaves[leaf].dim
                    self._pieces[leaf][run][(*before, place)] = value
            except BaseException as error:
                error.add_note(f"while example {example} of the source was read")
                self._error = error
        if not next(self._left):
            self._done.set()

    def stop(self) -> None:
        """Read no more of it."""
        self._is_unwanted = True

    def result(self) -> list[HostRows | np.ndarray[Any, Any]]:
        """Wait for the leaves: NumPy arrays where this process has all rows.

        Raises:
            DataError: an example does not fit the batch; and whatever the source raises.
        """
        while not self._done.wait(_TELL_EVERY_S):
            warnings.warn(
                f"the source has not given the rows of a batch for {_TELL_EVERY_S:.0f} s; see "
                "whether it still reads",
                stacklevel=3,
            )
        if self._error is not None:
            raise self._error
        return [
            pieces[0]
            if spans == ((0, leaf.shape[leaf.dim]),)
            else HostRows(
                leaf.shape,
                leaf.dtype,
                dim=leaf.dim,
                pieces=[(start, piece) for (start, _), piece in zip(spans, pieces, strict=True)],
                name=leaf.name,
            )
            for leaf, spans, pieces in zip(
                self._shelf.leaves, self._shelf.spans, self._pieces, strict=True
            )
        ]


class Readers:
    """The threads; they end when this object goes."""

    def __init__(self, shelf: Shelf, order: Order, sources: Sources, num_threads: int) -> None:
        """Start the threads.

        Args:
            shelf: Which rows go where.
            order: The order of the examples.
            sources: Where they come from.
            num_threads: How many there are.
        """
        self._shelf = shelf
        rows = list(shelf.rows)
        parts = (rows[n::num_threads] for n in range(num_threads))
        self._parts = [part for part in parts if part] or [[]]
        self._tasks: SimpleQueue[tuple[Reading, list[int]] | None] = SimpleQueue()
        for n in range(num_threads):
            threading.Thread(
                target=_work, args=(self._tasks, order, sources), name=f"reader {n}", daemon=True
            ).start()
        self.close = finalize(self, _end, self._tasks, num_threads)

    def begin(self, first: int) -> Reading:
        """Begin to read a batch.

        Args:
            first: The place of its first row in the order of the examples.
        """
        reading = Reading(self._shelf, first, len(self._parts))
        for part in self._parts:
            self._tasks.put((reading, part))
        return reading


def _run_shape(leaf: Leaf, span: Span) -> tuple[int, ...]:
    return (*leaf.shape[: leaf.dim], span[1] - span[0], *leaf.shape[leaf.dim + 1 :])


def _work(
    tasks: SimpleQueue[tuple[Reading, list[int]] | None], order: Order, sources: Sources
) -> None:
    while (task := tasks.get()) is not None:
        reading, rows = task
        reading.read(rows, order, sources)


def _end(tasks: SimpleQueue[tuple[Reading, list[int]] | None], num_threads: int) -> None:
    for _ in range(num_threads):
        tasks.put(None)
