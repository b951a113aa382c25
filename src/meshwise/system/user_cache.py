"""Where Meshwise keeps what can be made again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# The folder there of what was found out about layers.
RECORDS = "layers"


def user_cache() -> Path:
    """Return Meshwise's folder among the caches of this user; it may not exist yet.

    A user without a home, as in many containers, has it among the temporary files.

    Source: XDG base directory specification.
    """
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return Path(folder) / "meshwise"
    return Path(tempfile.gettempdir()) / f"meshwise-of-{os.getuid()}"
