"""Folders in which nobody else can write."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def own_folder(parents: Iterable[Path], name: str) -> Path | None:
    """Return the first folder that this user can make and write, and nobody else can write.

    Args:
        parents: Folders in which to make it, the best first; they are made if need be.
        name: Its name.

    Returns:
        The folder; None if there is none.
    """
    for parent in parents:
        folder = parent / name
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            if os.access(folder, os.W_OK) and _is_ours(parent) and _is_ours(folder):
                return folder
        except OSError:
            continue
    return None


def _is_ours(folder: Path) -> bool:
    found = folder.stat()
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
