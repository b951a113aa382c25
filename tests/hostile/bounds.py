"""What a file may cost whoever reads it: so much more memory, so many seconds."""

from __future__ import annotations

import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

# Far more than any of these files needs, far less than what a wrong number would ask for.
MORE_BYTES = 2**30
LIMIT_S = 30.0


class HangError(BaseException):
    """It has taken so long that it will not end."""


@contextmanager
def bounded(more_bytes: int = MORE_BYTES, limit_s: float = LIMIT_S) -> Generator[None, None, None]:
    """Run the block with little more memory than the process has, and a limit of time.

    Allocations beyond it fail, so that what asks for gigabytes ends in a `MemoryError`.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"not done after {limit_s:.0f} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + more_bytes, hard))
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
