"""Threads that are there before they are needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class SpareThreads:
    """Threads that wait for tasks: since 3.12 Python starts none while it ends.

    That it may do for long: it waits for the user's threads.
    """

    def __init__(self, number: int) -> None:
        """Start the threads; they end with the process.

        Args:
            number: How many tasks may run, or hang, at once.
        """
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for _ in range(number):
            threading.Thread(target=self._work, name="meshwise-spare", daemon=True).start()

    def run(self, task: Callable[[], None], limit_s: float) -> None:
        """Run a task, and return when it is done or when the time is over.

        Args:
            task: What to do; it may hang.
            limit_s: How long to wait for it, in seconds.
        """
        done = threading.Event()

        def run() -> None:
            try:
                task()
            finally:
                done.set()

        self._tasks.put(run)
        done.wait(limit_s)

    def _work(self) -> None:
        while True:
            self._tasks.get()()
