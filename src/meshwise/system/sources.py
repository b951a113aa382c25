"""The sources of a package, as they were when this process imported them."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

_START_NS = time.time_ns()


def sources_digest(package: Path) -> str | None:
    """Return a digest of all Python sources in a folder.

    Args:
        package: The folder.

    Returns:
        A hexadecimal digest; None if a source cannot be read, or has changed since this process
        began, because what runs may then differ from what the files say.
    """
    digest = hashlib.sha256()
    try:
        for source in sorted(package.rglob("*.py")):
            status = source.stat()
            if max(status.st_mtime_ns, status.st_ctime_ns) >= _START_NS:
                return None
            digest.update(f"{source.relative_to(package)}\n".encode())
            digest.update(source.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()
