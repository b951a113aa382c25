"""Whether XLA:GPU is installed, and a small step."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture
def gpu_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA:GPU, with an empty folder of answers."""
    if find_spec("jax_plugins") is None or find_spec("jax_plugins.xla_cuda12") is None:
        pytest.skip('needs XLA:GPU: pip install "meshwise[target-gpu]"')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
