"""What is asked of a way from process to process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jax import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """An array of one device that goes to a device of another process.

    Attributes:
        key: Tells it from all others; the same in both processes.
        shape: Its shape.
        dtype: Its dtype.
        source: The device that has it.
        destination: The device that gets it.
        value: The array, in the process that has it; elsewhere None.
    """

    key: int
    shape: tuple[int, ...]
    dtype: Any
    source: Any
    destination: Any
    value: Array | None


class Transport(Protocol):
    """A way from process to process."""

    @property
    def process(self) -> int:
        """The number of this process."""
        ...

    @property
    def is_collective(self) -> bool:
        """Whether every process takes part in every passage, all of them in one order.

        Else only the two processes of a passage take part.
        """
        ...

    def pass_all(self, passages: Sequence[Passage], label: str) -> list[Array | None]:
        """Start to send and to receive, without waiting.

        A source is kept until the other side has it.

        Args:
            passages: What goes from process to process; each stands in the lists of both of its
                processes, in any order.  For a collective transport the lists of all processes
                are the same, in one order, and so are their calls.
            label: What it is, for messages.

        Returns:
            For each what arrives, pending, where its destination is a device of this process.
        """
        ...

    def check(self) -> None:
        """Raise what went wrong since the last call.

        Raises:
            TransportError: a peer did not send what was waited for, or this process failed and
                has lost the order of the others.
        """
        ...

    def abandon(self, error: BaseException) -> None:
        """Note that this process failed in the midst of a step, and others may have gone on.

        Args:
            error: Why it failed.
        """
        ...


def key_of(*parts: object) -> int:
    """Return a number of 63 bits for what two processes call a passage by.

    What the two see in different ways has different keys: it never arrives, rather than as wrong
    numbers.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
