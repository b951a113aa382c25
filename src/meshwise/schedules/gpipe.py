"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.schedules.alternating import AlternatingSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class GPipe(AlternatingSchedule):
    """`2 (n + m - 1)` clocks, all m micro-batches in flight on every stage.

    Source: docs/facts.md sections 4 and 5.
    """

    name: ClassVar[str] = "gpipe"

    def warm_up(self, to_end: int, num_microbatches: int) -> int:
        """Return all micro-batches."""
        return num_microbatches


GPIPE = GPipe()
