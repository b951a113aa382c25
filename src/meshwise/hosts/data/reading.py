"""Threads that read batches ahead, row by row.

They are daemons: a source that never answers does not keep the process from its end.  But a daemon
that comes back into Python while the interpreter shuts down may abort the process, if it comes from
C++ (seen with pybind11 on Python 3.11).  So the end of the process waits a moment for the rows that
are being read.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any
from weakref import finalize

import numpy as np

from meshwise.errors import DataError
from meshwise.hosts.data.order import Order
from meshwise.hosts.data.sources import Leaf, Sources
from meshwise.runtime.host_rows import HostRows, Span

# How long a batch may take before the user is told.
_TELL_EVERY_S = 60.0
# A signal that comes just before a wait begins does not end it (Python looks for signals between
# instructions only), so no wait is longer than this, and Ctrl-C takes no longer either.
_LOOK_EVERY_S = 0.5
# How long the end of the process waits for rows that are being read.
_LEAVE_S = 3.0


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

    def __init__(self, shelf: Shelf, examples: Mapping[int, int], num_parts: int) -> None:
        """Make room for it.

        Args:
            shelf: Which rows go where.
            examples: For each row the number of its example.
            num_parts: In how many parts it is read.
        """
        self._shelf = shelf
        self._examples = examples
        self._pieces = [
            [np.empty(_run_shape(leaf, span), leaf.dtype) for span in spans]
            for leaf, spans in zip(shelf.leaves, shelf.spans, strict=True)
        ]
        self._error: BaseException | None = None
        self._is_unwanted = False
        self._left = itertools.count(num_parts - 1, -1)
        self._done = threading.Event()

    def read(self, rows: Sequence[int], sources: Sources, ending: threading.Event) -> None:
        """Read a part, in one of the threads; what goes wrong is kept.

        Args:
            rows: The rows of the part.
            sources: Where examples come from.
            ending: Is set when no more is to be read.
        """
        for row in rows:
            if ending.is_set() and self._error is None:
                self._error = DataError("the loader was closed while a batch was read")
            if self._is_unwanted or self._error is not None:
                break
            example, wanted = self._examples[row], self._shelf.rows[row]
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
        tell_at = time.monotonic() + _TELL_EVERY_S
        while not self._done.wait(_LOOK_EVERY_S):
            if time.monotonic() < tell_at:
                continue
            tell_at += _TELL_EVERY_S
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
        self._order = order
        rows = list(shelf.rows)
        parts = (rows[n::num_threads] for n in range(num_threads))
        self._parts = [part for part in parts if part] or [[]]
        self._crew = _Crew(sources, num_threads)
        self.close = finalize(self, self._crew.end)

    def begin(self, first: int) -> Reading:
        """Begin to read a batch.

        Args:
            first: The place of its first row in the order of the examples.
        """
        examples = {row: self._order.example(first + row) for row in self._shelf.rows}
        reading = Reading(self._shelf, examples, len(self._parts))
        for part in self._parts:
            self._crew.tasks.put((reading, part))
        return reading


class _Crew:
    """Threads at work, which keep this object; it knows nothing of who gives them work."""

    def __init__(self, sources: Sources, num_threads: int) -> None:
        self.tasks: SimpleQueue[tuple[Reading, list[int]] | None] = SimpleQueue()
        self._sources = sources
        self._ending = threading.Event()
        self._left = itertools.count(num_threads - 1, -1)
        self._threads = [
            threading.Thread(target=self._work, name=f"reader {n}", daemon=True)
            for n in range(num_threads)
        ]
        atexit.register(self._leave)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Have the threads end when the source has answered them."""
        self._ending.set()
        for _ in self._threads:
            self.tasks.put(None)

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None and not self._ending.is_set():
            reading, rows = task
            reading.read(rows, self._sources, self._ending)
        if not next(self._left):
            atexit.unregister(self._leave)

    def _leave(self) -> None:
        """Wait for the threads, as long as a source that works takes for a row."""
        self.end()
        deadline = time.monotonic() + _LEAVE_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))


def _run_shape(leaf: Leaf, span: Span) -> tuple[int, ...]:
    return (*leaf.shape[: leaf.dim], span[1] - span[0], *leaf.shape[leaf.dim + 1 :])
