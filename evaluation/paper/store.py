"""Results in a folder, one file each, found again by what they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import meshwise
from evaluation.paper.result import Result
from meshwise.system.atomic_file import write_atomically

_PACKAGE = Path(meshwise.__file__).resolve().parent
_EVALUATION = Path(__file__).resolve().parents[1]
# What decides a result.  Commands, pages, training and measuring do not.
_DECIDING = (
    "cluster graph resharding schedules plan assignment memory simulate pieces intra inter "
    "baselines rules trace models"
).split()
_DECIDING_FILES = (
    _PACKAGE / "planner/pipeline.py",
    _EVALUATION / "steps.py",
    *sorted((_EVALUATION / "baselines").glob("*.py")),
    *(_EVALUATION / "paper" / name for name in ("methods.py", "work.py", "ablations.py")),
    _EVALUATION / "paper" / "cut_rules.py",
)


@cache
def code_digest() -> str:
    """Digest of the code that plans and simulates."""
    files = [file for folder in _DECIDING for file in sorted((_PACKAGE / folder).rglob("*.py"))]
    digest = hashlib.sha256()
    for file in (*files, *_DECIDING_FILES):
        digest.update(file.relative_to(file.parents[1]).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def key_of(*parts: object) -> str:
    """Digest of what a result depends on, by its `repr`, and of the code."""
    digest = hashlib.sha256(code_digest().encode())
    for part in parts:
        digest.update(repr(part).encode())
    return digest.hexdigest()[:16]


class Store:
    """A folder of results.

    Attributes:
        folder: Where; made when something is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, setting: str, method: str, key: str) -> Result | None:
        """Return the result of a key; None if it is not there."""
        file = self._file(setting, method)
        found = _read(file) if file.exists() else None
        return found if found is not None and found.key == key else None

    def save(self, result: Result) -> Path:
        """Keep a result; an older one of the same setting and method goes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self._file(result.setting, result.method)
        write_atomically(file, result.to_json())
        return file

    def all(self) -> tuple[Result, ...]:
        """Return every result, also of other code; files that are none are passed over."""
        files: Iterable[Path] = sorted(self.folder.glob("*.json"))
        return tuple(found for file in files if (found := _read(file)) is not None)

    def _file(self, setting: str, method: str) -> Path:
        words = "".join(c if c.isalnum() else "-" for c in method.lower())
        return self.folder / f"{setting}--{words}.json"


def _read(file: Path) -> Result | None:
    try:
        return Result.from_json(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
