"""Seconds that several solves share."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager


class SolverTime:
    """Wall time for solves; each leaves less to those that follow.

    Solves of several threads at once each count as if they were alone.

    Attributes:
        left_s: Seconds that are left; infinite where there is no limit.
    """

    def __init__(self, limit_s: float = math.inf) -> None:
        """Start with all of it.

        Args:
            limit_s: Seconds; infinite for no limit, so that counted work alone ends a solve.
        """
        self.left_s = limit_s
        self._lock = threading.Lock()

    @contextmanager
    def used(self) -> Generator[float]:
        """Yield the seconds that are left for a solve inside the `with` block; it counts."""
        start = time.monotonic()
        try:
            yield self.left_s
        finally:
            with self._lock:
                self.left_s = max(self.left_s - (time.monotonic() - start), 0.0)
