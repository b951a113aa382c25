"""Readers of JSON values: each takes a value and the name of its field, and says what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from meshwise.errors import PlanError

Value = TypeVar("Value")
Other = TypeVar("Other")
# What the `json` module makes of a text.
Json = Any

Reader = Callable[[Json, str], Any]
# Fields of an older version to those of the present one.
Upgrade = Callable[[dict[str, Json]], dict[str, Json]]


def wrong(where: str, wanted: str, value: Json) -> PlanError:
    """The error of a field that is not what it must be."""
    got = repr(value)
    return PlanError(f"field {where!r}: expected {wanted}, got {got[:60]}")


def parsed(text: str) -> dict[str, Json]:
    """The object that a text of JSON holds.

    Raises:
        PlanError: it is no JSON, or another value.
    """
    given: Any = text
    if not isinstance(given, str):
        raise PlanError(f"a plan is read from a text, got {given!r:.60} ({type(given).__name__})")
    try:
        data: Json = json.loads(text)
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
        raise PlanError(
            f"not a plan: the field 'format' must be {names}, got {given_name!r:.60}; "
            "`meshwise plan --out FILE` and `plan.to_json()` write plans"
        )
    given = data.get("version")
    upgrades = older[given_name]
    known = [*sorted(upgrades), *([version] if given_name == name else [])]
    if given not in known or isinstance(given, bool):
        *most, last = map(str, known)
        listed = f"{', '.join(most)} and {last}" if most else last
        raise PlanError(f"field 'version': this program reads version {listed}, got {given!r}")
    rest = {key: value for key, value in data.items() if key not in ("format", "version")}
    return upgrades[given](rest) if given in upgrades else rest


def fields(data: Json, known: Mapping[str, Reader], where: str = "") -> dict[str, Any]:
    """Return the values of a JSON object that has exactly the given fields.

    Args:
        data: The object.
        known: Its fields, with what reads each.
        where: Name of the field that holds it; empty for the document.

    Raises:
        PlanError: it is no object, or a field is unknown, missing or wrong.
    """
    if not isinstance(data, dict):
        raise wrong(where, "an object", data)
    data = cast(dict[str, Json], data)
    prefix = f"{where}." if where else ""
    for key in data:
        if key not in known:
            raise PlanError(f"field {prefix + key!r} is unknown")
    for key in known:
        if key not in data:
            raise PlanError(f"field {prefix + key!r} is missing")
    return {key: read(data[key], prefix + key) for key, read in known.items()}


def record(
    data: Json, where: str, kind: Callable[..., Value], known: Mapping[str, Reader]
) -> Value:
    """Return a record from a JSON object that has exactly the given fields."""
    return kind(**fields(data, known, where))


def list_of(read: Callable[[Json, str], Value]) -> Callable[[Json, str], tuple[Value, ...]]:
    """A reader of lists."""

    def read_all(value: Json, where: str) -> tuple[Value, ...]:
        if not isinstance(value, list):
            raise wrong(where, "a list", value)
        items = cast(list[Json], value)
        return tuple(read(item, f"{where}[{i}]") for i, item in enumerate(items))

    return read_all


def text(value: Json, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise wrong(where, "a text", value)
    return value


def whole(value: Json, where: str) -> int:
    """A whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(where, "a whole number", value)
    return value


def count(value: Json, where: str) -> int:
    """A whole number above zero."""
    if whole(value, where) < 1:
        raise wrong(where, "a whole number above zero", value)
    return value


def size(value: Json, where: str) -> int:
    """A whole number, zero or more."""
    if whole(value, where) < 0:
        raise wrong(where, "a whole number, zero or more", value)
    return value


def number(value: Json, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(where, "a finite number", value)
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise wrong(where, "a finite number", value)
    return real


def positive(value: Json, where: str) -> float:
    """A number, zero or more."""
    if number(value, where) < 0:
        raise wrong(where, "a number, zero or more", value)
    return float(value)


def flag(value: Json, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


def one_of(known: Sequence[Value]) -> Callable[[Json, str], Value]:
    """A reader of one of some texts."""

    def read_one(value: Json, where: str) -> Value:
        for item in known:
            if value == item:
                return item
        raise wrong(where, "one of " + ", ".join(map(repr, known)), value)

    return read_one


def or_none(read: Callable[[Json, str], Value]) -> Callable[[Json, str], Value | None]:
    """A reader that takes null too."""

    def read_if(value: Json, where: str) -> Value | None:
        return None if value is None else read(value, where)

    return read_if


def positive_or_none(value: Json, where: str) -> float | None:
    """A number, zero or more, or null."""
    return None if value is None else positive(value, where)


def pair_of(
    first: Callable[[Json, str], Value], second: Callable[[Json, str], Other]
) -> Callable[[Json, str], tuple[Value, Other]]:
    """A reader of lists of two."""

    def read_pair(value: Json, where: str) -> tuple[Value, Other]:
        if not isinstance(value, list) or len(cast(list[Json], value)) != 2:
            raise wrong(where, "a list of two", value)
        one, two = cast(list[Json], value)
        return first(one, f"{where}[0]"), second(two, f"{where}[1]")

    return read_pair
