"""The files that describe clusters: TOML by hand, JSON by `meshwise calibrate`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from meshwise.errors import ClusterError

_MAX_BYTES = 64 * 2**20


def file_text(path: Path, what: str) -> str:
    """Return the text of a file.

    Args:
        path: The path of the file.
        what: The kind of file that it should be, for errors.

    Raises:
        ClusterError: it cannot be read, is no file, too large, or not text.
    """
    try:
        if path.is_dir():
            raise ClusterError(f"cannot read {what} {path}: it is a folder; name a file in it")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ClusterError(f"cannot read {what} {path}: {reason}") from error
    if len(data) > _MAX_BYTES:
        raise ClusterError(f"{what} {path} has more than 64 MiB, so it is something else")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ClusterError(
            f"{what} {path} is not TOML or JSON: byte {error.start} is not UTF-8; save it as UTF-8"
        ) from error


def read_toml(path: Path) -> dict[str, object]:
    """Return the table of a TOML file.

    Raises:
        ClusterError: it cannot be read or is not TOML.
    """
    text = file_text(path, "cluster file")
    try:
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
    text = file_text(path, "profile")
    try:
        return json.loads(text, object_pairs_hook=_no_repeats)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ClusterError(
            f"profile {path} is not JSON: {reason}; a profile is written by `meshwise calibrate`"
        ) from error


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} stands twice")
        found[key] = value
    return found
