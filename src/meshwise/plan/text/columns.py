"""Plain text tables that keep to a width, and what stands in their cells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from meshwise.graph.layout import Layout
from meshwise.plan.counts.contents import Argument

WIDTH = 100
MAX_ROWS = 60
GAP = "  "
# What follows a source line, as in `dot_general at model.py:7:9 (Block.__call__)`.
_FUNCTION = re.compile(r"( at \S+:\d+) \(.*\)$")


def shortened(text: str, width: int) -> str:
    """Return a text, its middle left out if it is too long; both ends tell most of a path.

    Of an operator with its source line the function in brackets goes first.

    Args:
        text: The text.
        width: The most characters that it may have.
    """
    if len(text) > width:
        text = _FUNCTION.sub(r"\1", text)
    if len(text) <= width:
        return text
    if width <= 3:
        return text[:width]
    head = (width - 3) // 2
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str) -> list[str]:
    """Return the lines of a table, at most `WIDTH` wide; the widest text columns give way.

    Args:
        header: Name of each column.
        rows: Cells.
        right: One letter a column: `r` for right-aligned (never shortened), `l` for left.
    """
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    room = WIDTH - len(GAP) * (len(header) - 1)
    while sum(widths) > room:
        widest = max((w, -i) for i, w in enumerate(widths) if right[i] == "l")
        widths[-widest[1]] -= 1
    lines: list[str] = []
    for line in (header, ["-" * w for w in widths], *rows):
        cells = [
            cell.rjust(w) if side == "r" else shortened(cell, w).ljust(w)
            for cell, w, side in zip(line, widths, right, strict=True)
        ]
        lines.append(GAP.join(cells).rstrip())
    return lines


def with_more(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the first rows of a table, and a row that says how many are left out.

    Args:
        rows: All rows.
    """
    if len(rows) <= MAX_ROWS:
        return rows
    rest = [""] * (len(rows[0]) - 1)
    return [*rows[:MAX_ROWS], (f"... and {len(rows) - MAX_ROWS} more", *rest)]


def with_space_below(lines: list[str]) -> list[str]:
    """Return lines with an empty one below; nothing where there are none.

    Args:
        lines: The lines.
    """
    return [*lines, ""] if lines else []


def place_text(argument: Argument, names: Sequence[str]) -> str:
    """Return how an argument lies, and whether it does in the memory of the host.

    Args:
        argument: The argument.
        names: Names of the mesh axes.
    """
    return with_place(layout_spec(argument.layout, names), in_host=argument.in_host)


def with_place(spec: str, *, in_host: bool) -> str:
    """Return a layout with its place, if that is the memory of the host.

    Args:
        spec: The layout as text.
        in_host: Whether it is.
    """
    return f"{spec} in host memory" if in_host else spec


def layout_spec(layout: Layout, names: Sequence[str]) -> str:
    """Return a layout with the names of the axes, as `P((y, x), -) sum over z`.

    Args:
        layout: The layout.
        names: Names of the mesh axes.
    """
    partial = ""
    if layout.partial:
        partial = f" {layout.monoid} over {', '.join(names[a] for a in layout.partial)}"
    return dims_text([[names[a] for a in axes] for axes in layout.dims]) + partial


def dims_text(dims: Sequence[Sequence[str]]) -> str:
    """Return what splits each dim, as `P((y, x), -)`; `-` stands for a dim that is whole.

    Args:
        dims: For each dim the names of the axes that split it.
    """
    words = [f"({', '.join(axes)})" if len(axes) > 1 else "".join(axes) or "-" for axes in dims]
    return f"P({', '.join(words)})"


def way_text(operands: Sequence[Layout], results: Sequence[Layout], names: Sequence[str]) -> str:
    """Return how an operator runs, as `P(x, -) P(-, -) -> P(x, -)`; results alone without operands.

    Args:
        operands: Layouts in which its operands enter.
        results: Layouts of its results.
        names: Names of the mesh axes.
    """
    sides = [" ".join(layout_spec(w, names) for w in side) for side in (operands, results)]
    return " -> ".join(sides) if operands else sides[1]


def type_text(dtype: str, shape: Sequence[int]) -> str:
    """Return the type of a tensor, as `float32[64,256]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def range_text(first: int, last: int) -> str:
    """Return a run of numbers, as `3` or `0-11`."""
    return str(first) if first == last else f"{first}-{last}"


def ranges_text(numbers: Iterable[int]) -> str:
    """Return numbers as runs, as `0-11, 14`; each comes once."""
    runs: list[str] = []
    for _, run in itertools.groupby(enumerate(dict.fromkeys(numbers)), lambda x: x[1] - x[0]):
        found = [number for _, number in run]
        runs.append(range_text(found[0], found[-1]))
    return ", ".join(runs)
