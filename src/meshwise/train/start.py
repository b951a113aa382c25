"""Which start of a job made the folder of a run anew: `--fresh` acts once, not at each restart."""

from __future__ import annotations

from pathlib import Path

_FILE = "fresh-start"


def note_start(folder: Path, start: str | None) -> None:
    """Note in the folder of a run that a job has begun it anew.

    Args:
        folder: Of the run.
        start: The name of the job, the same at all its restarts; None: nothing is noted.
    """
    if start is not None:
        (folder / _FILE).write_text(start)


def is_begun(folder: Path, start: str | None) -> bool:
    """Return whether a job has begun the run anew before.

    Args:
        folder: Of the run.
        start: The name of the job; None if it has none.
    """
    try:
        return start is not None and (folder / _FILE).read_text() == start
    except (OSError, ValueError):
        return False
