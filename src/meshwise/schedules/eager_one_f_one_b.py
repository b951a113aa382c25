"""Eager 1F1B: twice as far ahead as 1F1B, so that a transfer can hide behind a forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.schedules.alternating import AlternatingSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerOneFOneB(AlternatingSchedule):
    """`2 (n + m - 1)` clocks, `min(2 (n - i) - 1, m)` micro-batches in flight on stage i.

    Source: docs/facts.md sections 3 and 5 (AlpaComm).
    """

    name: ClassVar[str] = "eager-1f1b"

    hides_transfers: bool = True

    def warm_up(self, to_end: int, num_microbatches: int) -> int:
        """Return a forward for each stage to the end and for each transfer between them."""
        return 2 * to_end - 1


EAGER = EagerOneFOneB()
