"""`import meshwise` gives every public name, and loads JAX only when one is asked for."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import meshwise as mw

SOURCE = Path(mw.__file__).read_text(encoding="utf-8")


def names_for_type_checkers() -> dict[str, str]:
    """Name and module of each import that only type checkers see."""
    (block,) = (node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_both_lists_of_names_are_the_same():
    told = names_for_type_checkers()
    assert sorted(told) == dir(mw)
    for name, module in told.items():
        if name != "errors":
            assert getattr(mw, name) is getattr(importlib.import_module(module), name)
    assert mw.errors.ClusterError.__module__ == "meshwise.errors"


def test_a_star_import_takes_the_public_names_and_no_others():
    taken: dict[str, object] = {}
    exec("from meshwise import *", taken)
    # What needs a library that may not be there is only imported by name.
    assert sorted(taken.keys() - {"__builtins__"} | {"eqx", "nnx"}) == dir(mw)
    assert mw.__version__ == importlib.metadata.version("meshwise")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'paralelize'"):
        _ = mw.paralelize  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "module",
    [
        "meshwise",
        "meshwise.cli.doctor",
        "meshwise.cli.launch",
        "meshwise.cli.solve",
        "meshwise.cluster.spec",
        "meshwise.hosts.worker",
    ],
)
def test_what_needs_no_jax_does_not_load_it(module: str):
    code = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
