"""An import writes nothing, and the folder of kernels depends on all that is compiled."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshwise
from meshwise.kernels import folder

PACKAGE = Path(meshwise.__file__).parent
SOURCES = folder.kernel_sources()

_IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path[:0] = {path!r}
import meshwise
for module in pkgutil.walk_packages(meshwise.__path__, "meshwise."):
    if module.name != "meshwise.__main__":
        importlib.import_module(module.name)
"""


def test_importing_every_module_makes_no_file(tmp_path: Path) -> None:
    cache, own = tmp_path / "cache", tmp_path / "tmp"
    cache.mkdir()
    own.mkdir()
    subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL.format(path=sys.path)],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), "HOME": str(own), "TMPDIR": str(own)},
        cwd=own, check=True,
    )  # fmt: skip
    assert list(cache.rglob("*")) == []
    assert [path for path in own.rglob("*") if "meshwise" in path.name] == []


_CHANGED = """
import sys
sys.path[:0] = {path!r}
from meshwise.kernels import folder
print(folder.kernel_folder() is None)
folder.kernel_folder.cache_clear()
folder._START_NS = 0
print(folder.kernel_folder() is None)
"""


def test_after_a_source_has_changed_nothing_is_kept(tmp_path: Path) -> None:
    """What was imported may be older than what the file says now."""
    found = subprocess.run(
        [sys.executable, "-c", _CHANGED.format(path=sys.path)],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert found.stdout == "False\nTrue\n"


def _marked(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(mark, ast.Name) and mark.id in ("kernel", "light_kernel", "part")
            for mark in node.decorator_list
        ):
            yield node


def _imported(tree: ast.Module) -> dict[str, str]:
    """Module of each name that is imported from Meshwise."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshwise.")
        for alias in node.names
        if node.module is not None
    }


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_kernels_take_what_they_need_from_sources_that_count(source: Path) -> None:
    counted = {
        ".".join(("meshwise", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in SOURCES
    }
    tree = ast.parse(source.read_text(encoding="utf-8"))
    imported = _imported(tree)
    used = {
        name.id
        for function in _marked(tree)
        for name in ast.walk(function)
        if isinstance(name, ast.Name)
    }
    missing = {name: module for name, module in imported.items() if name in used}
    assert {n: m for n, m in missing.items() if m not in counted} == {}


def test_sources_of_all_packages_with_kernels_count() -> None:
    found = {path.relative_to(PACKAGE).parts[0] for path in SOURCES}
    assert {"assignment", "inter", "kernels"} <= found
