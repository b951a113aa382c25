"""One GPU: six models, each in a process of its own; time and memory, predicted and measured.

Processes plan side by side and have the GPU in turns, so that nothing runs beside what is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.target_memory import MODELS


def one_gpu(quick: bool) -> dict[str, Any]:
    """Goals: at most 1.02 of `jax.jit`, with micro-batches 1.05 of accumulation by hand."""
    names = list(MODELS)[:1] if quick else list(MODELS)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.json" for name in names}
        lock = Path(folder) / "lock"
        lock.touch()
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu_model", "--model", name]
                + ["--lock", str(lock), "--out", str(file), "--pairs", "5" if quick else "20"]
            )
            for name, file in files.items()
        ]
        try:
            codes = [child.wait() for child in started]
        finally:
            for child in started:
                child.kill()
        return {
            name: json.loads(file.read_text()) if code == 0 else {"exit": code}
            for (name, file), code in zip(files.items(), codes, strict=True)
        }
