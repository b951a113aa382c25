"""Readers of JSON values: each takes a value and the name of its field, and says what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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
    text: str, name: str, version: int, older: Mapping[int, Upgrade] = MappingProxyType({})
) -> dict[str, Json]:
    """The fields of a document, its `format` and `version` checked and left out.

    Args:
        text: Of the document.
        name: Of the format.
        version: Of the format, as it is written.
        older: For each older version that is read too, what it makes the fields of `version` of.

    Raises:
        PlanError: it is none, or one of another format or version.
    """
    data = parsed(text)
    if data.get("format") != name:
        raise PlanError(f"not a plan: the field 'format' must be {name!r}")
    given = data.get("version")
    known = [*sorted(older), version]
    if given not in known or isinstance(given, bool):
        *most, last = map(str, known)
        listed = f"{', '.join(most)} and {last}" if most else last
        raise PlanError(f"field 'version': this program reads version {listed}, got {given!r}")
    rest = {key: value for key, value in data.items() if key not in ("format", "version")}
    return rest if given == version else older[given](rest)


def record(data: Json, where: str, kind: Callable[..., Value], fields: Mapping[str, Reader]):
    """A record from a JSON object that has exactly the given fields."""
    if not isinstance(data, dict):
        raise wrong(where, "an object", data)
    data = cast(dict[str, Json], data)
    prefix = f"{where}." if where else ""
    for key in data:
        if key not in fields:
            raise PlanError(f"field {prefix + key!r} is unknown")
    for key in fields:
        if key not in data:
            raise PlanError(f"field {prefix + key!r} is missing")
    return kind(**{key: read(data[key], prefix + key) for key, read in fields.items()})


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
