"""What differs between two things, by section, as text of at most 100 columns and as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from meshwise.plan.files.json_read import Json
from meshwise.plan.text.columns import table, with_more
from meshwise.units import bytes_text, flop_text, seconds_text

Value: TypeAlias = str | int | float | None
Pair: TypeAlias = tuple[str, Value, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not the same.

    Attributes:
        what: Its name.
        first: In the first plan; None where it is not there.
        second: In the second plan.
        unit: `s`, `bytes`, `FLOP`, `share`, or nothing.
        count: How many such things there are.
    """

    what: str
    first: Value
    second: Value
    unit: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Differences of one kind."""

    title: str
    rows: tuple[Difference, ...]


def changed(pairs: Sequence[Pair], unit: str = "") -> list[Difference]:
    """Return the pairs that are not equal, in their order."""
    return [
        Difference(what=what, first=first, second=second, unit=unit)
        for what, first, second in pairs
        if first != second
    ]


def sections(*named: tuple[str, Sequence[Difference]]) -> tuple[Section, ...]:
    """Those that have something in them."""
    return tuple(Section(title=title, rows=tuple(rows)) for title, rows in named if rows)


def difference_text(found: Sequence[Section], names: tuple[str, str]) -> str:
    """Return sections as tables.

    Args:
        found: The sections.
        names: Names of the two things that differ.

    Returns:
        A text of at most 100 columns; empty if there are no sections.
    """
    lines: list[str] = []
    for section in found:
        rows = with_more([_row(item) for item in section.rows])
        header = ["", *names, "change"]
        if all(len(row) > 3 and not row[3] for row in rows):
            header, rows = header[:3], [row[:3] for row in rows]
        lines += ["", section.title, *table(header, rows, "lllr"[: len(header)], (1, 2))]
    return "\n".join([*lines[1:], ""]) if lines else ""


def difference_data(found: Sequence[Section]) -> list[dict[str, Json]]:
    """Return sections as JSON.

    Args:
        found: The sections.

    Returns:
        For each section its title and its rows.
    """
    return [
        {
            "title": section.title,
            "rows": [
                {"what": r.what, "count": r.count, "a": r.first, "b": r.second}
                | ({"unit": r.unit} if r.unit else {})
                for r in section.rows
            ],
        }
        for section in found
    ]


_TEXTS: dict[str, Callable[[float], str]] = {
    "s": seconds_text,
    "bytes": bytes_text,
    "FLOP": flop_text,
    "share": lambda value: f"{value:.2%}",
}


def _row(item: Difference) -> tuple[str, ...]:
    what = item.what if item.count == 1 else f"{item.what} ({item.count})"
    return (what, _text(item.first, item.unit), _text(item.second, item.unit), _change(item))


def _text(value: Value, unit: str) -> str:
    if value is None:
        return "-"
    if unit and not isinstance(value, str):
        return _TEXTS[unit](value)
    return str(value)


def _change(item: Difference) -> str:
    """Return the relative change of times, bytes and work."""
    first, second = item.first, item.second
    if isinstance(first, str) or isinstance(second, str) or not item.unit or item.unit == "share":
        return ""
    if not first or second is None:
        return ""
    return f"{second / first - 1:+.1%}"
