"""Bounds of one kind of the entries of a layer, and a guess of how far plans lie above them.

The bounds of a layer lie below its plans by nearly the same for all states.  Left so, an entry that
was solved would always lose against one that was not, and all of them would be solved.  So where
no proof is asked for, what the first plans cost more than their bounds is added to the others.
"""

from __future__ import annotations

import numpy as np

# So many plans of a layer tell how far its bounds lie below.
_SAMPLES = 4


class BoundLevel:
    """Bounds of one kind.

    Attributes:
        proved_s: No plan costs less, (states that enter, states that leave); NaN where unknown.
    """

    def __init__(self, shape: tuple[int, int], *, guesses: bool) -> None:
        """Know nothing.

        Args:
            shape: Numbers of states that enter and that leave.
            guesses: Whether a guess may be added to bounds.
        """
        self.proved_s = np.full(shape, np.nan)
        self._guesses = guesses
        self._gaps_s: list[float] = []

    def is_known(self, place: tuple[int, int]) -> bool:
        """Return whether an entry has such a bound."""
        return not np.isnan(self.proved_s[place])

    def note(self, place: tuple[int, int], cost_s: float) -> None:
        """Learn from what the plan of an entry costs."""
        if self.is_known(place):
            self._gaps_s.append(max(cost_s - float(self.proved_s[place]), 0.0))

    @property
    def gap_s(self) -> float:
        """How far bounds lie below plans; 0 where that is not known, or must not be guessed."""
        has_gap = self._guesses and len(self._gaps_s) >= _SAMPLES
        return min(self._gaps_s) if has_gap else 0.0
