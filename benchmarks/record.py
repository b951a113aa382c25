"""Results as dated JSON files with what is needed to judge them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("meshwise", "jax", "jaxlib", "flax", "optax", "highspy", "numpy")


def machine() -> dict[str, Any]:
    """Processor, cores, operating system and package versions."""
    return {
        "cores": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "platform": platform.platform(),
        "processor": _processor(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def write_record(folder: Path, name: str, result: Mapping[str, Any]) -> Path:
    """Write one result as `NAME-DATE.json`.

    Returns:
        The file.
    """
    now = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{now:%Y%m%dT%H%M%SZ}.json"
    record = {
        "benchmark": name,
        "time": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "result": dict(result),
    }
    path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path
