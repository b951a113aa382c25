"""What Orbax notes beside a checkpoint: it is not needed, and Orbax fails where it is damaged."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

_FILE = "_CHECKPOINT_METADATA"
_MOST_BYTES = 2**20
# Of a time in nanoseconds: the year 2116.
_LATEST_NS = 2**62
_KINDS: dict[str, tuple[type, ...]] = {
    "item_handlers": (dict, str, type(None)),
    "metrics": (dict, type(None)),
    "performance_metrics": (dict, type(None)),
    "init_timestamp_nsecs": (int, type(None)),
    "commit_timestamp_nsecs": (int, type(None)),
    "custom_metadata": (dict, type(None)),
}


def set_notes_aside(folder: Path) -> None:
    """Rename the notes of checkpoints that Orbax would fail with.

    Args:
        folder: Holds a folder for each checkpoint.
    """
    with suppress(OSError):  # It is not there yet, or takes no writes.
        for file in folder.glob(f"[0-9]*/{_FILE}"):
            if not _is_sound(file):
                file.rename(file.with_name(f"{_FILE}.damaged"))


def _is_sound(file: Path) -> bool:
    try:
        if file.stat().st_size > _MOST_BYTES:
            return False
        notes: Any = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(notes, dict):
        return False
    found: dict[str, Any] = notes  # pyright: ignore[reportUnknownVariableType]
    if not all(isinstance(value, _KINDS.get(name, ())) for name, value in found.items()):
        return False
    times = [found.get(name) or 0 for name in ("init_timestamp_nsecs", "commit_timestamp_nsecs")]
    if not all(0 <= time < _LATEST_NS for time in times):
        return False
    handlers: Any = found.get("item_handlers")
    named = handlers.values() if isinstance(handlers, dict) else []  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    numbers: Any = found.get("performance_metrics") or {}
    return all(isinstance(name, str) for name in named) and all(  # pyright: ignore[reportUnknownVariableType]
        isinstance(number, float) for number in numbers.values()
    )
