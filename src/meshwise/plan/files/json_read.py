"""The outermost part of a plan file: its text, its format and its version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from meshwise.errors import PlanError
from meshwise.system.text_file import without_repeats

# What the `json` module makes of a text.
Json: TypeAlias = Any
# Fields of an older version to those of the present one.
Upgrade = Callable[[dict[str, Json]], dict[str, Json]]


def parsed(text: str) -> dict[str, Json]:
    """Return the object that a text of JSON holds.

    Raises:
        PlanError: it is no JSON, or another value.
    """
    given = cast(object, text)
    if not isinstance(given, str):
        raise PlanError(f"a plan is read from a text, got {given!r:.60} ({type(given).__name__})")
    try:
        data: Json = json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise PlanError(f"a plan must be JSON: {reason}") from error
    return cast(dict[str, Json], data) if isinstance(data, dict) else {}


def document(
    text: str, version: int, older: Mapping[str, Mapping[int, Upgrade]], name: str
) -> dict[str, Json]:
    """Return the fields of a document, its `format` and `version` checked and left out.

    Args:
        text: The document.
        version: The present version of the format `name`.
        older: For each format that is read, its older versions with what makes the present fields
            of theirs.
        name: The format of the present version.

    Raises:
        PlanError: the text is no document, or one of another format or version.
    """
    data = parsed(text)
    given_name = data.get("format")
    if not isinstance(given_name, str) or given_name not in older:
        names = " or ".join(map(repr, older))
        remedy = "`meshwise plan --out FILE` and `plan.to_json()` write plans"
        if isinstance(data.get("plan"), dict):
            remedy = "earlier versions of `meshwise train` wrote such a file, its plan is in 'plan'"
        raise PlanError(
            f"not a plan: the field 'format' must be {names}, got {given_name!r:.60}; {remedy}"
        )
    given = data.get("version")
    upgrades = older[given_name]
    known = [*sorted(upgrades), *([version] if given_name == name else [])]
    if given not in known or isinstance(given, bool):
        *most, last = map(str, known)
        listed = f"{', '.join(most)} and {last}" if most else last
        raise PlanError(f"field 'version': this program reads version {listed}, got {given!r:.60}")
    rest = {key: value for key, value in data.items() if key not in ("format", "version")}
    return upgrades[given](rest) if given in upgrades else rest
