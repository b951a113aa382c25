"""XLA:GPU and XLA:TPU where they are installed, and a double of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwise.errors import ClusterError
from meshwise.runtime.device_memory import CompiledBytes
from meshwise.targets import compiler, verification
from meshwise.targets.child import CompileAnswer
from meshwise.targets.packages import InstalledCompiler, installed_compiler

ANSWER = CompileAnswer(
    memory=CompiledBytes(argument_bytes=5, output_bytes=3, alias_bytes=2, temporary_bytes=7),
    text="HloModule m\n\nENTRY %main (a: f32[]) -> f32[] {\n  ROOT %a = f32[] parameter(0)\n}\n",
    seconds=1.5,
)


# Where `make test` installs XLA:GPU, and `make check-targets` XLA:TPU too.
COMPILERS = Path(__file__).parents[2] / "build" / "compilers"


@pytest.fixture
def gpu_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA:GPU, with an empty folder of answers."""
    _use_compiler("cuda", tmp_path, monkeypatch)


@pytest.fixture
def tpu_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA:TPU, with an empty folder of answers."""
    _use_compiler("tpu", tmp_path, monkeypatch)


def _use_compiler(platform: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPILERS)
    try:
        installed_compiler(platform)
    except ClusterError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(compiler, "user_cache", lambda: folder)


@pytest.fixture
def compiler_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that says the same of every program."""
    installed = InstalledCompiler(name="a compiler 1.0", path="")
    monkeypatch.setattr(verification, "installed_compiler", lambda _: installed)
    monkeypatch.setattr(
        verification,
        "compile_programs",
        lambda _, programs, listener=None: [ANSWER] * len(programs),
    )
