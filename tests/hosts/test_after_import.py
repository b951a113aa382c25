"""A function that runs once a module was imported."""

from __future__ import annotations

import importlib
import importlib.resources
import sys
from pathlib import Path

import pytest

from meshwise.hosts.after_import import after_import


def test_the_function_runs_after_the_import_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    seen: list[int] = []
    after_import("late_module", lambda: seen.append(sys.modules["late_module"].value))
    importlib.import_module("json")
    assert seen == []
    module = importlib.import_module("late_module")
    assert seen == [1]
    # As if nothing had been there.
    assert sys.meta_path == before
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert type(module.__loader__).__module__ == "_frozen_importlib_external"
    assert importlib.reload(module).value == 1
    assert seen == [1]


def test_a_module_that_is_not_there_is_an_import_error() -> None:
    after_import("no_such_module", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("no_such_module")
