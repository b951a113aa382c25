"""Folders of unused kernels go; the second process that compiles never outlives the first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwise.intra.solver.helper import _second_process, kernels
from meshwise.intra.solver.kept import own_folder, remove_unused

NOW, DAY = 1_800_000_000.0, 24 * 3600.0


def _folder(parent: Path, name: str, days: float) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "kept").touch()
    os.utime(folder, (NOW - days * DAY, NOW - days * DAY))
    return folder


def test_only_folders_of_kernels_that_are_unused_for_long_go(tmp_path: Path) -> None:
    present = _folder(tmp_path, "kernels-0", 99)
    old = _folder(tmp_path, "kernels-1", 31)
    recent = _folder(tmp_path, "kernels-2", 29)
    other = _folder(tmp_path, "plans", 99)
    remove_unused(present, NOW)
    assert [path.exists() for path in (present, old, recent, other)] == [True, False, True, True]
    # In use, it is not old for those that come later.
    remove_unused(recent, NOW)
    assert present.exists()


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    old = _folder(tmp_path, "kernels-1", 31)
    remove_unused(tmp_path / "kernels-0", NOW)
    assert old.exists()


def test_kernels_are_kept_where_nobody_else_can_write(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "file").touch()
    assert own_folder((tmp_path / "file", shared, own), "kernels-0") == own / "kernels-0"
    (own / "kernels-0").chmod(0o775)
    assert own_folder((own,), "kernels-0") is None


def test_the_second_process_ends_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    process = _second_process()
    assert process.stdin is not None
    # As the system does for a process that was killed.
    process.stdin.close()
    assert process.wait(timeout=600) == 1


def test_the_second_process_is_gone_after_an_error(tmp_path: Path) -> None:
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from meshwise.intra.solver.helper import kernels
try:
    with kernels(print):
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)
        raise KeyError
except KeyError:
    pass
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child")
"""
    found = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == "no child\n"


def test_nothing_is_compiled_or_said_when_all_kernels_are_kept(compiled_kernels: None) -> None:
    said: list[str] = []
    with kernels(said.append) as wait:
        wait()
    assert said == []


def test_kernels_for_another_processor_are_in_another_folder(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from meshwise.intra.solver.kept import kernel_folder
print(kernel_folder())
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path), **other},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for other in ({}, {}, {"NUMBA_CPU_NAME": "generic"})
    }
    assert len(found) == 2
