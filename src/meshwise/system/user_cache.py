"""Where Meshwise keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path

# The folder there of what was found out about layers.
RECORDS = "layers"


def user_cache() -> Path:
    """Return Meshwise's folder among the caches of this user; it may not exist yet.

    Source: XDG base directory specification.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "meshwise"
