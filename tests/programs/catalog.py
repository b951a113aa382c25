"""The programs of `families/`, read from their sources: to list them needs no library of theirs."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oracle.problem import Problem

FAMILIES = Path(__file__).parent / "families"
# What every checkout has for its tests; other libraries may be absent.
ALWAYS = frozenset({"__future__", "collections", "functools", "typing", "numpy", "jax", "meshwise"})


@dataclass(frozen=True, slots=True)
class Program:
    """A training program as a user writes it.

    Attributes:
        name: Of the function that makes it.
        family: Of the file where it stands.
        technique: What it is for: the first line of its docstring.
        libraries: Third-party libraries that its file imports.
    """

    name: str
    family: str
    technique: str
    libraries: tuple[str, ...]

    def refusal(self, way: str) -> str:
        """The name of the file that keeps the refusal of this program in one of the ways."""
        return f"{self.name}.{way}.txt"

    def problem(self) -> Problem:
        """Make the program; skips the test where a library is not installed."""
        for library in self.libraries:
            pytest.importorskip(library, reason=f"{library} is not installed: extra `programs`")
        return getattr(importlib.import_module(f"programs.families.{self.family}"), self.name)()


def _libraries(tree: ast.Module) -> tuple[str, ...]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module)):
                found.add(module.partition(".")[0])
            case _:
                pass
    return tuple(sorted(found - ALWAYS - {"oracle", "programs"}))


def _makes_a_program(node: Any) -> bool:
    return isinstance(node, ast.FunctionDef) and ast.unparse(node.returns or node) == "Problem"


def programs() -> Iterator[Program]:
    """All programs: the functions that return a `Problem`, file by file."""
    for path in sorted(FAMILIES.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        libraries = _libraries(tree)
        for node in filter(_makes_a_program, tree.body):
            technique = (ast.get_docstring(node) or "").partition("\n")[0]
            yield Program(node.name, path.stem, technique, libraries)
