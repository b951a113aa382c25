"""What the documents name exists: files, rooms, modules, and what links lead to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Pages that a program writes are its business.
WRITTEN = ("docs/paper/", "docs/alpacomm/", "docs/measurements/fits_settings.md")
# A room or a module is named as from one of these folders.
FROM = ("", "src/meshwise/", "src/meshwise/assignment/", "src/meshwise/inter/")
# Names of files that users have.
NOT_OURS = {"my_module/make"}


def documents() -> Iterator[Path]:
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        name = path.relative_to(ROOT).as_posix()
        # What is gone keeps its name in the changelog.
        if not name.startswith(WRITTEN) and name != "CHANGELOG.md":
            yield path


def is_there(name: str) -> bool:
    path, _, attribute = name.partition(".")
    candidates = [name, f"{name}.py", f"{path}.py" if attribute else path]
    return any((ROOT / start / found).exists() for start in FROM for found in candidates)


@pytest.mark.parametrize(
    "path", list(documents()), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_what_a_document_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = {name.rstrip("/") for name in re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9.]+)+/?)`", text)}
    assert not [name for name in sorted(named - NOT_OURS) if not is_there(name)]
    modules = set(re.findall(r"`(meshwise(?:\.[a-z_0-9]+)+)`", text))
    assert not [name for name in sorted(modules) if not is_there("src/" + name.replace(".", "/"))]
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)}
    files = {link for link in links if link and "://" not in link}
    assert not [link for link in sorted(files) if not (path.parent / link).exists()]
