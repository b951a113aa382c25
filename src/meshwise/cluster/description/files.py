"""The files that describe clusters: TOML by hand, JSON by `meshwise calibrate`."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from meshwise.errors import ClusterError
from meshwise.system.text_file import text_of, without_repeats

# TOML is read in Python, at a megabyte in half a second.
_MOST_TOML_BYTES, _MOST_JSON_BYTES = 4 * 2**20, 8 * 2**20
# `tomllib` takes time and memory in proportion to the square of the parts of a key.
_MOST_PARTS = 32
_TOKEN = re.compile(
    r"""(?P<part>"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[A-Za-z0-9_-]++)|(?P<dot>\.)|[ \t]++|\\.|.""", re.S
)


def file_text(path: Path, what: str, most_bytes: int) -> str:
    """Return the text of a file.

    Args:
        path: The path of the file.
        what: The kind of file that it should be, for errors.
        most_bytes: A longer one is refused.

    Raises:
        ClusterError: it cannot be read, is no file, too large, or not text.
    """
    try:
        if path.is_dir():
            raise ClusterError(f"cannot read {what} {path}: it is a folder; name a file in it")
        with path.open("rb") as file:
            return text_of(file, most_bytes)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ClusterError(f"cannot read {what} {path}: {reason}") from error


def read_toml(path: Path) -> dict[str, object]:
    """Return the table of a TOML file.

    Raises:
        ClusterError: it cannot be read or is not TOML.
    """
    text = file_text(path, "cluster file", _MOST_TOML_BYTES)
    try:
        _check_parts(text)
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        hint = (
            "; a profile in JSON is read by Cluster.from_profile"
            if text.lstrip().startswith("{")
            else "; `name = value` on each line, texts in quotes"
        )
        raise ClusterError(f"cluster file {path} is not TOML: {reason}{hint}") from error


def read_json(path: Path) -> object:
    """Return the value of a JSON file.

    Raises:
        ClusterError: it cannot be read or is not JSON, or a key stands twice.
    """
    text = file_text(path, "profile", _MOST_JSON_BYTES)
    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ClusterError(
            f"profile {path} is not JSON: {reason}; a profile is written by `meshwise calibrate`"
        ) from error


def _check_parts(text: str) -> None:
    """Refuse keys of very many parts, as `a.b.c`.

    Raises:
        ValueError: there is one.
    """
    num_parts, was_part = 0, False
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        if kind == "part":
            num_parts, was_part = (1 if was_part else num_parts + 1), True
        elif kind == "dot":
            was_part = False
        elif not found[0].isspace() or "\n" in found[0]:
            num_parts, was_part = 0, False
        if num_parts > _MOST_PARTS:
            line = text.count("\n", 0, found.start()) + 1
            raise ValueError(f"a key of more than {_MOST_PARTS} parts (at line {line})")
