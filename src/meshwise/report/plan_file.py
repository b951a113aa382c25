"""Plan files."""

from __future__ import annotations

import sys
from pathlib import Path

from meshwise.errors import PlanError
from meshwise.plan.plan import Plan
from meshwise.system.text_file import text_of

# JSON takes up to 24 times as much memory as its text.
_MOST_BYTES = 32 * 2**20
# In characters; names in a file may be of any length.
_LONGEST_REASON = 400


def plan_from_file(path: Path) -> Plan:
    """Return the plan in a file; `-` is the standard input.

    Raises:
        PlanError: naming the file, and what is wrong in it.
    """
    try:
        if str(path) == "-":
            return Plan.from_json(text_of(sys.stdin.buffer, _MOST_BYTES))
        with path.open("rb") as file:
            return Plan.from_json(text_of(file, _MOST_BYTES))
    except (OSError, ValueError, PlanError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{path}: {str(reason)[:_LONGEST_REASON]}") from error
