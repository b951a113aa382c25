"""The batches of a step, of which each process reads the rows that its own devices take."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from meshwise.errors import DataError
from meshwise.hosts.data.order import order_of
from meshwise.hosts.data.reading import Readers, Reading, shelf_of
from meshwise.hosts.data.sources import Leaf, Sources
from meshwise.runtime.host_rows import HostRows, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUse:
    """How a step takes a batch, in this process.

    Attributes:
        tree: The tree of the batch; its leaves are numbers.
        leaves: The leaves.
        spans: For each of them the rows that devices of this process take.
        finish: Makes of the leaves the batch that the step takes.
    """

    tree: Any
    leaves: tuple[Leaf, ...]
    spans: tuple[tuple[Span, ...], ...]
    finish: Callable[[Sequence[HostRows | np.ndarray[Any, Any]]], Any]

    @property
    def num_rows(self) -> int:
        """The rows of the whole batch."""
        return self.leaves[0].shape[self.leaves[0].dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """What a user asks of a loader; see `ParallelStep.loader`."""

    seed: int
    shuffle: bool
    epochs: int | None
    prefetch: int
    threads: int

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            DataError: one of them is not what it can be.
        """
        limits = {"epochs": (self.epochs, 1), "prefetch": (self.prefetch, 0)}
        for name, (value, least) in {**limits, "threads": (self.threads, 1)}.items():
            if value is not None and (type(value) is not int or value < least):
                raise DataError(f"{name} must be a whole number of at least {least}, got {value!r}")


class Loader:
    """An iterator over the batches of a step; each process gets its rows of the same batches.

    It is made by `step.loader`.  Batches follow one order of all examples, epoch after epoch, so a
    batch may end one epoch and begin the next; what is left at the very end is no batch.
    """

    def __init__(
        self,
        source: Any,
        use: BatchUse,
        options: LoaderOptions,
        start: Mapping[str, Any] | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            source: The examples, as `Sources` takes them.
            use: How the step takes a batch.
            options: What the user asks.
            start: The state of an earlier loader of the same examples.

        Raises:
            DataError: the source does not fit the batch or has less than one, the state is that of
                other examples or of another order, or Grain is not installed.
        """
        self._use = use
        self._prefetch = options.prefetch
        self._threads = options.threads
        self._sources = Sources(source, use.tree, use.leaves)
        num_examples = self._sources.num_examples
        self._order = order_of(num_examples, options.seed if options.shuffle else None)
        self._stop = None if options.epochs is None else options.epochs * num_examples
        if self._stop is not None and self._stop < use.num_rows:
            raise DataError(
                f"the source has {num_examples} examples, and epochs={options.epochs} of them are "
                f"fewer than one batch of {use.num_rows}; take a smaller batch, or more epochs"
            )
        self._shelf = shelf_of(use.leaves, use.spans)
        self._place = 0 if start is None else self._started(start)
        self._readers: Readers | None = None
        self._ahead: deque[Reading] = deque()
        self._is_closed = False

    @property
    def rows(self) -> dict[str, tuple[Span, ...]]:
        """The rows of each leaf of a batch that this process reads: first, and one behind last."""
        return {leaf.name: s for leaf, s in zip(self._use.leaves, self._use.spans, strict=True)}

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Any:
        """Return the next batch, and begin to read others.

        Raises:
            DataError: an example does not fit the batch, or the loader is closed; and whatever the
                source raises.  The next call begins with the same batch.
        """
        if self._is_closed:
            raise DataError("the loader is closed; make another one with start=loader.state()")
        self._begin(1)
        if not self._ahead:
            raise StopIteration
        try:
            leaves = self._ahead[0].result()
        except BaseException:  # What the source raises, and Ctrl-C.
            self._forget()
            raise
        self._ahead.popleft()
        self._place += self._use.num_rows
        self._begin(self._prefetch)
        return self._use.finish(leaves)

    def state(self) -> dict[str, Any]:
        """Return where the loader is, in numbers that JSON holds; equal in all processes.

        What was read ahead does not count.  A loader that begins with it continues the order of
        the examples, with any number of processes, another plan, or batches of another size.
        """
        return {
            "examples": self._place,
            "num_examples": self._order.num_examples,
            "seed": self._order.seed,
        }

    def close(self) -> None:
        """Stop reading; threads end when the source has answered them."""
        self._is_closed = True
        self._forget()
        if self._readers is not None:
            self._readers.close()
            self._readers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, count: int) -> None:
        """Have at least so many batches ahead, as far as there are examples."""
        if self._readers is None:
            order, sources = self._order, self._sources
            self._readers = Readers(self._shelf, order, sources, self._threads)
        while len(self._ahead) < count:
            first = self._place + len(self._ahead) * self._use.num_rows
            if self._stop is not None and first + self._use.num_rows > self._stop:
                return
            self._ahead.append(self._readers.begin(first))

    def _forget(self) -> None:
        for reading in self._ahead:
            reading.stop()
        self._ahead.clear()

    def _started(self, start: Mapping[str, Any]) -> int:
        """Return the place where an earlier loader was."""
        own = {"num_examples": self._order.num_examples, "seed": self._order.seed}
        for name, value in own.items():
            if name not in start or start[name] != value:
                raise DataError(
                    f"the state is of a loader with {name} {start.get(name, 'unknown')!r}, this "
                    f"one has {value!r}, so the order of the examples is another; make it with "
                    "the same source, seed and shuffle, or without start"
                )
        place = start.get("examples")
        if type(place) is not int or place < 0:
            raise DataError(f"the state of a loader has no place in the order, got {place!r}")
        return place
