"""Exit codes of commands, beside 0, 1 (an error) and 2 (wrong use)."""

from __future__ import annotations

# As a shell reports a process that SIGINT ended.
INTERRUPTED = 130
