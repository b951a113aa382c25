"""Whether a folder takes a file, found by writing one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_PROBE_BYTES = 4096


def probe_writable(folder: Path) -> None:
    """Write a small file into a folder, and remove it.

    The rights of the folder do not say whether it works: root may all, also on a disk that is full
    or read-only.

    Args:
        folder: It is there.

    Raises:
        OSError: the folder takes no file.
    """
    with tempfile.NamedTemporaryFile(prefix=".probe", dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())
