"""1F1B: a stage runs no more forwards ahead than it takes for the first backward to come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwise.schedules.alternating import AlternatingSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class OneFOneB(AlternatingSchedule):
    """`2 (n + m - 1)` clocks, `min(n - i, m)` micro-batches in flight on stage i.

    Source: docs/facts.md section 5 (PipeDream-Flush, DAPPLE).
    """

    name: ClassVar[str] = "1f1b"

    def warm_up(self, to_end: int, num_microbatches: int) -> int:
        """Return the stages to the end: a micro-batch each until the first comes back."""
        return to_end


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpaOneFOneB(OneFOneB):
    """1F1B with memory as in eq. 5 of Alpa, which does not look at the number of micro-batches."""

    name: ClassVar[str] = "alpa"

    def in_flight(self, to_end: int, num_meshes: int, num_microbatches: int) -> float:
        """Return the stages to the end, even where there are fewer micro-batches."""
        return to_end

    @property
    def table_name(self) -> str:
        """The name of 1F1B."""
        return OneFOneB.name


ONE_F_ONE_B = OneFOneB()
ALPA = AlpaOneFOneB()
