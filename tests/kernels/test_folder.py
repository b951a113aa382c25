"""Folders of unused kernels go; processes that compile never outlive the first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshwise
from assignment.problems import random_document
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.instance import is_solution
from meshwise.assignment.kernel_set import KERNELS
from meshwise.kernels.background import _process, compiling
from meshwise.kernels.folder import remove_unused
from meshwise.system.own_folder import own_folder

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


def test_a_process_that_compiles_ends_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    process = _process(KERNELS.module, "compile_search")
    assert process.stdin is not None
    # As the system does for a process that was killed.
    process.stdin.close()
    assert process.wait(timeout=600) == 1


def test_processes_that_compile_are_gone_after_an_error(tmp_path: Path) -> None:
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from meshwise.assignment.kernel_set import KERNELS
from meshwise.kernels.background import compiling
try:
    with compiling(KERNELS, print):
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
    with compiling(KERNELS, said.append) as wait:
        assert wait(0.0)
    assert said == []


_SOLVE = f"""
import sys
sys.path[:0] = {sys.path!r}
from meshwise.cli import main
main()
"""


def _solve(file: Path, *options: str, cache: Path, **other: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SOLVE, "solve", str(file), "--json", *options],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), **other},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A problem that needs kernels."""
    path = tmp_path / "large.json"
    path.write_text(json.dumps(random_document(1, num_nodes=1000, tight=0.3, forbid=False)))
    return path


@pytest.mark.slow
def test_two_may_compile_kernels_at_once(large: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    both = [_solve(large, "--time-limit", "600", cache=cache) for _ in range(2)]
    for process in both:
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        assert json.loads(out)["status"] == "optimal"
        assert "compiling the solver, once" in errors
    (folder,) = (cache / "meshwise").iterdir()
    assert (folder / "assignment.complete").exists()
    process = _solve(large, "--time-limit", "600", cache=cache)
    out, errors = process.communicate()
    assert json.loads(out)["status"] == "optimal"
    assert "compiling" not in errors


@pytest.mark.slow
def test_without_a_folder_for_kernels_they_are_compiled_each_time(
    large: Path, tmp_path: Path
) -> None:
    """Tests may run as a user who may write everywhere: what is no folder cannot hold one."""
    (tmp_path / "file").touch()
    own = tmp_path / "tmp"
    own.mkdir()
    (own / f"meshwise-{os.getuid()}").touch()
    process = _solve(
        large, "--time-limit", "600", cache=tmp_path / "file", TMPDIR=str(own), HOME=str(own)
    )
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(out)["status"] == "optimal"
    assert "as no folder for them can be written (XDG_CACHE_HOME), each time" in errors


@pytest.mark.parametrize("is_kept", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_limit_that_ends_before_kernels_are_compiled_leaves_a_first_solution(
    large: Path, tmp_path: Path, is_kept: bool
) -> None:
    cache, own = tmp_path / "cache", tmp_path / "tmp"
    own.mkdir()
    if not is_kept:
        cache.touch()
        (own / f"meshwise-{os.getuid()}").touch()
    process = _solve(large, "--time-limit", "5", cache=cache, TMPDIR=str(own))
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    data = json.loads(out)
    assert data["status"] == "feasible"
    assert is_solution(read_instance(large), data["choice"])
    assert "the solver is not compiled yet: a first solution costs" in errors


_CALL = """
import os, pathlib, sys
sys.path[:0] = {path!r}
from doubles.kernels import compiled
from meshwise.assignment.reductions import reduction
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.instance_solver import solve_instance
answer = solve_instance(read_instance(pathlib.Path({file!r})), time_limit_s=2)
print(answer.status, len(compiled(reduction._run).nopython_signatures))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child")
"""


def test_a_caller_never_waits_for_its_own_compilation(large: Path, tmp_path: Path) -> None:
    """Others compile; until they have, there is a first solution."""
    found = subprocess.run(
        [sys.executable, "-c", _CALL.format(path=sys.path, file=str(large))],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == "feasible 0\nno child\n"


def test_kernels_for_another_processor_are_in_another_folder(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from meshwise.kernels.folder import kernel_folder
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


def test_kernels_of_another_installation_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    # Numba would compile them again, though the light ones need no compiler at all.
    package = Path(meshwise.__file__).parent
    shutil.copytree(package, tmp_path / "meshwise", ignore=shutil.ignore_patterns("__pycache__"))
    show = "from meshwise.kernels.folder import kernel_folder; print(kernel_folder())"

    def folder(path: Path) -> str:
        environment = {**os.environ, "PYTHONPATH": str(path), "XDG_CACHE_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", show],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    ours, theirs = folder(package.parent), folder(tmp_path)
    assert "kernels-" in ours
    assert "kernels-" in theirs
    assert ours != theirs
