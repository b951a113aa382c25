"""What a run has seen so far; it is saved with each checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from meshwise.plan.files.json_read import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Losses; those of a model on text are in nats per byte.

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
    def from_json(cls, value: Any) -> Self:
        """Return the history that `to_json` wrote.

        Args:
            value: Of a file that may hold anything.

        Raises:
            ValueError: it is no history.
        """
        if not isinstance(value, dict) or value.keys() != {"losses", "heldout"}:
            raise ValueError("the history is no object with losses and heldout")
        losses, heldout = value["losses"], value["heldout"]
        if not isinstance(losses, list) or not isinstance(heldout, list):
            raise ValueError("the history has no lists")
        for pair in heldout:
            if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
                raise ValueError(f"no pair of a step and a loss: {str(pair)[:80]}")
        steps = [step for step, _ in heldout]
        if steps != sorted(steps) or any(not 0 <= step <= len(losses) for step in steps):
            raise ValueError("steps of held-out losses are out of order")
        return cls(
            losses=tuple(map(_loss, losses)),
            heldout=tuple((step, _loss(loss)) for step, loss in heldout),
        )


def _loss(value: Any) -> float:
    """Return a loss, which may be no number or infinite, as JSON of Python says it.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"no loss: {str(value)[:80]}")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"no loss: {str(value)[:80]}") from error
