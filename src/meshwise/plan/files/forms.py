"""Forms of values in JSON: each reads a value, or says what is wrong with a field, and writes it.

1 and 1.0 are equal, so both are written as 1.0 where a number need not be whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from meshwise.errors import PlanError
from meshwise.plan.files.json_read import Json
from meshwise.system.text_file import is_plain

Value = TypeVar("Value")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class Form(Generic[Value]):
    """How values of a kind stand in JSON.

    Attributes:
        read: Returns the value that JSON stands for; it is told the name of the field.
        write: Returns the JSON of a value.
    """

    read: Callable[[Json, str], Value]
    write: Callable[[Value], Json]


Fields = Mapping[str, Form[Any]]

# What counters of this world can hold.
_MOST = 2**63 - 1
# Seconds, bytes and FLOP of no step come near; products and sums of such numbers stay finite.
_MOST_NUMBER = 1e30
_LEAST_RATE = 1e-30
_SHOWN = 60


def wrong(where: str, wanted: str, value: Json) -> PlanError:
    """Return the error of a field that is not what it must be."""
    return PlanError(f"field {where!r}: expected {wanted}, got {_shown(value)}")


def _shown(value: Json) -> str:
    try:
        return repr(value)[:_SHOWN]
    except ValueError:
        return "a number of thousands of digits"
    except RecursionError:
        return "what is nested too deeply"


def read_fields(data: Json, known: Fields, where: str = "") -> dict[str, Any]:
    """Return the values of a JSON object that has exactly the given fields.

    Args:
        data: The object.
        known: Its fields.
        where: Name of the field that holds it; empty for the document.

    Returns:
        Values by name.

    Raises:
        PlanError: it is no object, or a field is unknown, missing or wrong.
    """
    if not isinstance(data, dict):
        raise wrong(where, "an object", data)
    data = cast(dict[str, Json], data)
    prefix = f"{where}." if where else ""
    for key in data:
        if key not in known:
            raise PlanError(f"field {prefix + key[:_SHOWN]!r} is unknown")
    for key in known:
        if key not in data:
            raise PlanError(f"field {prefix + key!r} is missing")
    return {key: form.read(data[key], prefix + key) for key, form in known.items()}


def written(value: object, known: Fields) -> dict[str, Json]:
    """Return the fields of a record as JSON."""
    return {name: form.write(getattr(value, name)) for name, form in known.items()}


def record(
    kind: Callable[..., Value], known: Fields, optional: Collection[str] = ()
) -> Form[Value]:
    """Return the form of records.

    Args:
        kind: Makes a record from its fields.
        known: The fields.
        optional: Fields that are left out where they are empty.
    """

    def read_record(value: Json, where: str) -> Value:
        there = cast(Collection[str], value) if isinstance(value, dict) else ()
        here = {n: form for n, form in known.items() if n not in optional or n in there}
        return kind(**read_fields(value, here, where))

    def write_record(value: Value) -> Json:
        data = written(value, known)
        return {name: item for name, item in data.items() if name not in optional or item}

    return Form(read_record, write_record)


def list_of(form: Form[Value]) -> Form[tuple[Value, ...]]:
    """Return the form of tuples, which are lists in JSON."""

    def read_all(value: Json, where: str) -> tuple[Value, ...]:
        if not isinstance(value, list):
            raise wrong(where, "a list", value)
        items = cast(list[Json], value)
        return tuple(form.read(item, f"{where}[{i}]") for i, item in enumerate(items))

    return Form(read_all, lambda values: [form.write(value) for value in values])


def line_of(form: Form[Value]) -> Form[tuple[Value, ...]]:
    """Return the form of tuples that are written in one line, however long they are."""
    items = list_of(form)
    return Form(items.read, lambda values: tuple(items.write(values)))


def pair_of(first: Form[Value], second: Form[Other]) -> Form[tuple[Value, Other]]:
    """Return the form of pairs, which are lists of two in JSON."""

    def read_pair(value: Json, where: str) -> tuple[Value, Other]:
        if not isinstance(value, list) or len(cast(list[Json], value)) != 2:
            raise wrong(where, "a list of two", value)
        one, two = cast(list[Json], value)
        return first.read(one, f"{where}[0]"), second.read(two, f"{where}[1]")

    return Form(read_pair, lambda pair: [first.write(pair[0]), second.write(pair[1])])


def or_none(form: Form[Value]) -> Form[Value | None]:
    """Return the form of values that may be None, which is null in JSON."""
    return Form(
        lambda value, where: None if value is None else form.read(value, where),
        lambda value: None if value is None else form.write(value),
    )


def one_of(known: Sequence[Value]) -> Form[Value]:
    """Return the form of one of some texts."""

    def read_one(value: Json, where: str) -> Value:
        for item in known:
            if value == item:
                return item
        raise wrong(where, "one of " + ", ".join(map(repr, known)), value)

    return Form(read_one, _same)


def _same(value: object) -> Json:
    return value


def _text(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise wrong(where, "a text", value)
    if not is_plain(value):
        raise wrong(where, "a text without control characters", value)
    return value


def _whole(value: Json, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(where, "a whole number", value)
    if not -_MOST <= value <= _MOST:
        raise wrong(where, "a number of less than 64 bits", value)
    return value


def _count(value: Json, where: str) -> int:
    if _whole(value, where) < 1:
        raise wrong(where, "a whole number above zero", value)
    return value


def _size(value: Json, where: str) -> int:
    if _whole(value, where) < 0:
        raise wrong(where, "a whole number, zero or more", value)
    return value


def _number(value: Json, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(where, "a finite number", value)
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise wrong(where, "a finite number", value)
    if abs(real) > _MOST_NUMBER:
        raise wrong(where, f"a number of at most {_MOST_NUMBER:g}", value)
    return real


def _positive(value: Json, where: str) -> float:
    if _number(value, where) < 0:
        raise wrong(where, "a number, zero or more", value)
    return float(value)


def _rate(value: Json, where: str) -> float:
    if _number(value, where) < _LEAST_RATE:
        raise wrong(where, f"a number of at least {_LEAST_RATE:g}", value)
    return float(value)


def _flag(value: Json, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


TEXT = Form(_text, _same)
WHOLE = Form(_whole, _same)
# Whole numbers, at least 1 and at least 0.
COUNT, SIZE = Form(_count, _same), Form(_size, _same)
# Finite numbers, any and at least 0.
NUMBER, POSITIVE = Form(_number, float), Form(_positive, float)
# What is divided by: above 0.
RATE = Form(_rate, float)
FLAG = Form(_flag, _same)
