"""Exit codes beside 0, 1 (an error) and 2 (wrong use)."""

from __future__ import annotations

# As a shell reports a process that SIGINT ended.
INTERRUPTED = 130
# What ended the process may be over when it is started again: another process of its job failed,
# or the machine is taken away.  `EX_TEMPFAIL` of sysexits.h.
START_AGAIN = 75
