"""XLA:GPU and XLA:TPU where they are installed, and a double of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from meshwise.runtime.device_memory import CompiledBytes
from meshwise.targets import verification
from meshwise.targets.child import CompileAnswer
from meshwise.targets.packages import InstalledCompiler

ANSWER = CompileAnswer(
    memory=CompiledBytes(argument_bytes=5, output_bytes=3, alias_bytes=2, temporary_bytes=7),
    text="HloModule m\n\nENTRY %main (a: f32[]) -> f32[] {\n  ROOT %a = f32[] parameter(0)\n}\n",
    seconds=1.5,
)


@pytest.fixture
def gpu_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA:GPU, with an empty folder of answers."""
    if find_spec("jax_plugins") is None or find_spec("jax_plugins.xla_cuda12") is None:
        pytest.skip('needs XLA:GPU: pip install "meshwise[target-gpu]"')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def tpu_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA:TPU, with an empty folder of answers."""
    if find_spec("libtpu") is None:
        pytest.skip('needs XLA:TPU: pip install "meshwise[target-tpu]"')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def compiler_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that says the same of every program."""
    installed = InstalledCompiler(name="a compiler 1.0", path="")
    monkeypatch.setattr(verification, "installed_compiler", lambda _: installed)
    monkeypatch.setattr(
        verification, "compile_programs", lambda _, programs, listener: [ANSWER] * len(programs)
    )
