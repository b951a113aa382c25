"""Sockets between processes that count what they send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jax import Array

from meshwise.runtime.transports.transport import Passage, Transport


class CountingTransport:
    """A transport that counts the payload that this process sends; signals are not payload."""

    def __init__(self, inner: Transport) -> None:
        """Begin with nothing.

        Args:
            inner: Passes arrays on.
        """
        self._inner = inner
        # For each process the bytes that it was sent.
        self.payload_bytes: Counter[int] = Counter()

    @property
    def process(self) -> int:
        """The number of this process."""
        return self._inner.process

    @property
    def is_collective(self) -> bool:
        """As the inner transport."""
        return self._inner.is_collective

    def pass_all(self, passages: Sequence[Passage], label: str) -> list[Array | None]:
        """Count what this process sends, and pass it on; see `Transport.pass_all`."""
        for each in passages:
            # A signal is a single number, which no piece of these cases is.
            if each.value is not None and each.value.size > 1:
                self.payload_bytes[each.destination.process_index] += each.value.nbytes
        return self._inner.pass_all(passages, label)

    def check(self) -> None:
        """Look whether something went wrong."""
        self._inner.check()

    def abandon(self, error: BaseException) -> None:
        """Refuse what comes after a failure."""
        self._inner.abandon(error)
