"""Records as JSON text: sorted, what fits into a line in one line, equal bytes for equal values."""

from __future__ import annotations

import json
from typing import cast

from meshwise.errors import PlanError
from meshwise.plan.files.json_read import Json

LINE_LENGTH = 100


def json_text(data: Json) -> str:
    """Return the text of a document.

    Raises:
        PlanError: a number is infinite or not a number.
    """
    try:
        return "".join(_lines(data, "")) + "\n"
    except ValueError as error:
        raise PlanError(f"a plan with infinite numbers cannot be written: {error}") from error


def _lines(value: Json, indent: str) -> list[str]:
    """Pieces of text; what fits into a line stays in one."""
    flat = json.dumps(value, sort_keys=True, allow_nan=False)
    if len(indent) + len(flat) <= LINE_LENGTH or not isinstance(value, dict | list) or not value:
        return [flat]
    deeper = indent + " "
    if isinstance(value, dict):
        table = cast(dict[str, Json], value)
        items = [(f"{json.dumps(key)}: ", table[key]) for key in sorted(table)]
    else:
        items = [("", item) for item in cast(list[Json], value)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    pieces = [opening]
    for position, (key, item) in enumerate(items):
        pieces.append(f"{',' if position else ''}\n{deeper}{key}")
        pieces.extend(_lines(item, deeper))
    return [*pieces, f"\n{indent}{closing}"]
