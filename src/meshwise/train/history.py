"""What a run has seen so far; it is saved with each checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from meshwise.plan.files.json_read import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Losses in nats per byte.

    Attributes:
        losses: Training loss of each step from the first on.
        heldout: Pairs (steps done, held-out loss), ascending.
    """

    losses: tuple[float, ...] = ()
    heldout: tuple[tuple[int, float], ...] = ()

    def to_json(self) -> dict[str, Json]:
        """Return the history as JSON values."""
        return {"losses": list(self.losses), "heldout": [list(pair) for pair in self.heldout]}

    @classmethod
    def from_json(cls, value: dict[str, Json]) -> Self:
        """Return the history that `to_json` wrote."""
        return cls(
            losses=tuple(map(float, value["losses"])),
            heldout=tuple((int(step), float(loss)) for step, loss in value["heldout"]),
        )
