"""Plan files."""

from __future__ import annotations

import sys
from pathlib import Path

from meshwise.errors import PlanError
from meshwise.plan.plan import Plan


def plan_from_file(path: Path) -> Plan:
    """Return the plan in a file; `-` is the standard input.

    Raises:
        PlanError: naming the file, and what is wrong in it.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        return Plan.from_json(text)
    except (OSError, UnicodeDecodeError, PlanError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{path}: {reason}") from error
