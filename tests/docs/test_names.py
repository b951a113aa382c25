"""Every public name has its place in the reference, and every error its cause and remedy."""

from __future__ import annotations

import inspect

import meshwise as mw
from doubles.page_blocks import ROOT
from meshwise import errors


def test_every_public_name_stands_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rooms = {"errors": "meshwise.errors", "ray": "meshwise.hosts.ray.trainer"}
    names = [rooms.get(name, f"meshwise.{name}") for name in dir(mw)]
    assert [name for name in names if f"::: {name}\n" not in page] == []


def test_every_error_has_a_cause_and_a_remedy() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    kinds = [name for name, kind in inspect.getmembers(errors, inspect.isclass)]
    assert kinds
    assert [name for name in kinds if f"`{name}`" not in page.replace("meshwise.errors.", "")] == []
