"""A folder whose files together have no more than so many bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Once there is too much, files go until this share of the bound is left.
_STAYS = 0.8


def trim(folder: Path, most_bytes: int, suffixes: tuple[str, ...]) -> None:
    """Remove what was used longest ago, if all files together are above a bound.

    Args:
        folder: The folder.
        most_bytes: The bound.
        suffixes: Ends of the names of the files that count.
    """
    found = sorted(files(folder, suffixes))
    total = sum(size for _, size, _ in found)
    if total <= most_bytes:
        return
    for _, size, path in found:
        if total <= _STAYS * most_bytes:
            return
        with suppress(OSError):
            path.unlink()
        total -= size


def files(folder: Path, suffixes: tuple[str, ...]) -> list[tuple[float, int, Path]]:
    """Return when each file was last read or written, its bytes, and its path.

    Args:
        folder: The folder.
        suffixes: Ends of the names of the files that count.
    """
    found: list[tuple[float, int, Path]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffixes):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    used = max(status.st_atime, status.st_mtime)
                    found.append((used, status.st_size, Path(entry.path)))
    return found
