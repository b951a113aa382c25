"""The file in which a process says what ended its job, for whoever started it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# The environment variable with its name; without it nothing is written.
CAUSE_FILE = "MESHWISE_CAUSE_FILE"


def write_cause(process: int, text: str) -> None:
    """Write what ended the job, if there is a place for it.

    Args:
        process: The process that is the cause.
        text: What happened.
    """
    path = os.environ.get(CAUSE_FILE)
    if path:
        with suppress(OSError):
            Path(path).write_text(json.dumps({"process": process, "text": text}) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What ended a job.

    Attributes:
        process: The process that is the cause.
        text: What happened.
    """

    process: int
    text: str


def first_cause(files: Sequence[Path]) -> Cause | None:
    """Return what the processes of a job say that ended it; None if none says anything.

    Args:
        files: Where each would write it.
    """
    found = [file for file in files if file.exists()]
    if not found:
        return None
    first = min(found, key=lambda file: file.stat().st_mtime)
    try:
        told = json.loads(first.read_text())
        return Cause(process=int(told["process"]), text=str(told["text"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
