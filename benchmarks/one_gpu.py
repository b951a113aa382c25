"""One GPU: six models, each in a process of its own; time and memory, predicted and measured.

Processes plan side by side, then have the GPU in turns: while the first is timed, others still use
cores of the host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.target_memory import MODELS

# Each takes of the GPU's memory what it needs, since all are there at once.
_SETTINGS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def one_gpu(quick: bool) -> dict[str, Any]:
    """Goals: at most 1.02 of `jax.jit`, with micro-batches 1.05 of accumulation by hand."""
    names = list(MODELS)[:1] if quick else list(MODELS)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = {name: Path(folder) / f"{name}.json" for name in names}
        (lock := Path(folder) / "lock").touch()
        started: dict[str, subprocess.Popen[bytes]] = {}
        for name, file in files.items():
            command = [sys.executable, "-m", "benchmarks.gpu_model", "--model", name]
            command += ["--lock", str(lock), "--out", str(file), "--pairs", "5" if quick else "20"]
            started[name] = subprocess.Popen(command, env=os.environ | _SETTINGS)
            stack.callback(_end, started[name])
        codes = {name: child.wait() for name, child in started.items()}
        return {
            name: {
                # What was measured before a failure counts.
                **(json.loads(file.read_text()) if file.exists() else {}),
                **({"exit": codes[name]} if codes[name] else {}),
            }
            for name, file in files.items()
        }


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
