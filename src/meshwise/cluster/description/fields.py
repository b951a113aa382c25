"""Typed reading of the tables of a description; every error has place, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from meshwise.errors import ClusterError
from meshwise.system.text_file import is_plain

Table = Mapping[str, object]

# What memory and counters of this world can hold.
_MAX_WHOLE = 2**63 - 1
# Far beyond anything that was built; products and sums of such numbers stay finite.
_LEAST_NUMBER, _MOST_NUMBER = 1e-30, 1e30
_SHOWN = 60


def shown(value: object) -> str:
    """Return a value as an error shows it."""
    try:
        text = repr(value)
    except ValueError:  # A whole number of thousands of digits.
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def table_of(value: object, where: str, known: Sequence[str]) -> Table:
    """Return a table with no other keys than the known ones.

    Raises:
        ClusterError: it is something else, or has others.
    """
    if not isinstance(value, dict):
        raise ClusterError(
            f"{where} must be a table, got {shown(value)}; its keys are {', '.join(known)}"
        )
    table = cast(Table, value)
    for key in table:
        if key not in known:
            raise ClusterError(f"{where}: unknown key {shown(key)}; known: {', '.join(known)}")
    return table


def list_of(value: object, where: str) -> list[object]:
    """Return a list.

    Raises:
        ClusterError: it is something else.
    """
    if not isinstance(value, list):
        raise ClusterError(f"{where} must be a list, got {shown(value)}")
    return cast(list[object], value)


def required(table: Table, key: str, where: str) -> object:
    """Return the value of a key.

    Raises:
        ClusterError: it is missing.
    """
    if key not in table:
        raise ClusterError(f"{where}: key {key!r} is missing; add it")
    return table[key]


def text(table: Table, key: str, where: str, default: str | None = None) -> str:
    """Return a text that says something.

    Raises:
        ClusterError: it is something else, or missing without a default.
    """
    if default is not None and key not in table:
        return default
    value = required(table, key, where)
    if not isinstance(value, str):
        raise ClusterError(f"{where}: {key!r} must be a text, got {shown(value)}")
    if not value.strip():
        raise ClusterError(f"{where}: {key!r} must not be empty, got {value!r:.60}")
    if not is_plain(value):
        raise ClusterError(
            f"{where}: {key!r} must be a text without control characters, got {shown(value)}"
        )
    return value


def count(table: Table, key: str, where: str, default: int | None = None) -> int:
    """Return a whole number above zero.

    Raises:
        ClusterError: it is something else, or missing without a default.
    """
    if default is not None and key not in table:
        return default
    value = required(table, key, where)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ClusterError(
            f"{where}: {key!r} must be a whole number above zero, got {shown(value)}"
        )
    if value > _MAX_WHOLE:
        raise ClusterError(f"{where}: {key!r} must be less than 2**63, got {shown(value)}")
    return value


def number(table: Table, key: str, where: str, *, above_zero: bool = True) -> float:
    """Return a finite number, above zero or zero too.

    Raises:
        ClusterError: it is something else or missing.
    """
    return number_of(required(table, key, where), key, where, above_zero=above_zero)


def number_of(value: object, key: str, where: str, *, above_zero: bool = True) -> float:
    """Return a finite number, above zero or zero too.

    Raises:
        ClusterError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClusterError(f"{where}: {key!r} must be a number, got {shown(value)}")
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    # `not >` also refuses nan.
    if not (real > 0 or (real == 0 and not above_zero)) or not real < math.inf:
        bound = "above zero" if above_zero else "zero or more"
        raise ClusterError(f"{where}: {key!r} must be finite and {bound}, got {shown(value)}")
    if real and not _LEAST_NUMBER <= real <= _MOST_NUMBER:
        raise ClusterError(
            f"{where}: {key!r} must be from {_LEAST_NUMBER:g} to {_MOST_NUMBER:g}, got "
            f"{shown(value)}; see the unit"
        )
    return real
