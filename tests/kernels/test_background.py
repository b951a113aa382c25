"""Kernels that are compiled behind the work that will need them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwise.kernels import background
from meshwise.kernels.background import KernelSet, compiling_behind

# A part that leaves a file, and one that does not end.
MODULE = """
import os, pathlib, time
def part():
    pathlib.Path(os.environ["DONE"]).touch()
def endless():
    part()
    time.sleep(3600)
"""


class Folder:
    """Stands for the folder of kernels; knows which sets are complete."""

    def __init__(self) -> None:
        self.complete: set[str] = set()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    found = Folder()
    (tmp_path / "parts_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DONE", str(tmp_path / "done"))
    monkeypatch.setattr(background, "usable_cores", lambda: 2)
    monkeypatch.setattr(background, "kernel_folder", lambda: tmp_path)
    monkeypatch.setattr(background, "has_all_kernels", lambda name: name in found.complete)
    monkeypatch.setattr(background, "note_all_kernels", found.complete.add)
    return found


def kernels(*parts: str) -> KernelSet:
    return KernelSet(package="late", module="parts_of_a_test", parts=parts)


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_once_all_is_compiled_no_process_is_started(folder: Folder, tmp_path: Path) -> None:
    for patience_s in (0.5, 5.0, 50.0):
        with compiling_behind(kernels("part"), 0.0):
            await_file(tmp_path / "done")
            # The process has to end, too.
            time.sleep(patience_s)
        (tmp_path / "done").unlink()
        if folder.complete:
            break
    assert folder.complete == {"late"}
    with compiling_behind(kernels("part"), 0.0):
        time.sleep(0.5)
    assert not (tmp_path / "done").exists()


def test_what_is_not_done_ends_with_the_block(folder: Folder, tmp_path: Path) -> None:
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from kernels.test_background import await_file, kernels
from meshwise.kernels import background
background.kernel_folder = lambda: Path({str(tmp_path)!r})
background.usable_cores = lambda: 2
background.has_all_kernels = lambda _: False
background.note_all_kernels = print
try:
    with background.compiling_behind(kernels("endless"), 0.0):
        await_file(Path({str(tmp_path / "done")!r}))
        raise KeyError
except KeyError:
    pass
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child")
"""
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    assert found.stdout == "no child\n"
    assert not folder.complete


def test_one_core_compiles_what_it_calls(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "usable_cores", lambda: 1)
    with compiling_behind(kernels("part"), 0.0):
        time.sleep(0.5)
    assert not (tmp_path / "done").exists()
    assert not folder.complete


def test_a_block_that_ends_soon_starts_no_process(folder: Folder, tmp_path: Path) -> None:
    with compiling_behind(kernels("part"), 0.5):
        pass
    time.sleep(1.0)
    assert not (tmp_path / "done").exists()
    assert not folder.complete
