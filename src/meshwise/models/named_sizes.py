"""Configurations by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

Config = TypeVar("Config")


def size_table(
    config: Callable[..., Config], fields: str, rows: Mapping[str, Sequence[Any]]
) -> dict[str, Config]:
    """Configurations from a table: names of the columns, separated by spaces, and rows by name."""
    names = fields.split()
    return {name: config(**dict(zip(names, row, strict=True))) for name, row in rows.items()}


def sized(model: str, sizes: Mapping[str, Config], name: str, changes: Mapping[str, Any]) -> Config:
    """The configuration of a size, some fields set otherwise.

    Raises:
        ValueError: there is no such size.
    """
    if name not in sizes:
        raise ValueError(f"no {model} size {name!r}; there are {', '.join(sizes)}")
    return replace(sizes[name], **changes)  # pyright: ignore[reportArgumentType]  # a dataclass
