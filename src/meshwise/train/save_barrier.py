"""Where the processes of a job wait for each other while a checkpoint is written.

Orbax's own barriers wait 20 minutes for a process whose write failed.  Here a process whose save
ends early says so, and the others stop to wait for it.
"""

from __future__ import annotations

import threading

from meshwise.errors import CheckpointError
from meshwise.runtime.job.job import Job

# Barriers of Orbax 0.12: all is written; the checkpoint has its name.
_PLACES = ("async_write_complete", "async_commit_complete")
# Around a note whether a save is in progress: at its begin, and at its end after a failure, too.
_NOTE = "ThreadSaveMultiHostValueHolder"
_HERE, _GONE = "here", "gone"


class OtherProcessError(CheckpointError):
    """A save ended because it failed in another process, which says why."""


class SaveBarrier:
    """The `barrier_sync_fn` of Orbax's `AsyncOptions`, for one save after the other."""

    def __init__(self, job: Job) -> None:
        """No save has begun.

        Args:
            job: The processes that save together.
        """
        self._job = job
        self._number = 0
        self._caller = 0
        self._left: set[str] = set()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin the next save; all processes have ended the one before."""
        if self._number:
            self._job.withdraw(f"save/{self._number}")
        self._number = self._job.count("saves")
        self._caller = threading.get_ident()
        self._left = set(_PLACES)

    def leave(self) -> None:
        """End this save in this process: it comes to no more barriers."""
        with self._lock:
            places, self._left = self._left, set()
        for place in places:
            self._job.publish(self._name(place), _GONE)

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Wait until all processes are here.

        Args:
            key: The name that Orbax gives the barrier.
            timeout_ms: How long to wait, in milliseconds.

        Raises:
            OtherProcessError: the save of another process has failed.
            TransportError: another process does not come.
        """
        if _NOTE in key:
            if threading.get_ident() != self._caller:
                self.leave()
            return
        place = next((place for place in _PLACES if place in key), key)
        with self._lock:
            self._left.discard(place)
        self._job.publish(self._name(place), _HERE)
        for other in range(self._job.num_processes):
            if other == self._job.process:
                continue
            patience_s = timeout_ms / 1000
            said = self._job.published(self._name(place), other, patience_s=patience_s)
            if said == _GONE:
                raise OtherProcessError(f"process {other} could not write its part")

    def _name(self, place: str) -> str:
        return f"save/{self._number}/{place}"
