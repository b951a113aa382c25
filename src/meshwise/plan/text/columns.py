"""Plain text tables that keep to a width, and what stands in their cells."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

from meshwise.graph.layout import Layout
from meshwise.plan.counts.contents import Argument
from meshwise.plan.text.shortening import shortened, told_apart, without_function
from meshwise.units import range_text

WIDTH = 100
MAX_ROWS = 60
# Of a text that has a full form the tables have at most so many rows.
SHORT_ROWS = 30
GAP = "  "
# So narrow a column of texts that go on below gives way only as others do.
_LEAST_WRAPPED = 24
# So many lines may a cell have that is compared with another.
_MOST_LINES = 3
# Where a line may end: after a space or a key of a path, but not inside the brackets of a layout.
_END = re.compile(r"(?:(?<= )|(?<=[/,])(?! ))(?![^()]*(?:\([^()]*\)[^()]*)*\))")


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: str,
    told_apart_in: tuple[int, int] | None = None,
) -> list[str]:
    """Return the lines of a table, at most `WIDTH` wide; the widest text columns give way.

    Texts that are too long are shortened. Different ones in a column that would be equal then are
    continued on the next line, whole.

    Args:
        header: Name of each column; where there is little room, those of numbers may have two
            lines, as `all-` and `gather`.
        rows: Cells.
        right: One letter a column: `r` for right-aligned (never shortened), `l` for left, `w` for
            left and continued on the next line instead of shortened.
        told_apart_in: Two columns of texts that are compared: they are continued below, and where
            they would be long, shortened so that what differs is seen.
    """
    room = WIDTH - len(GAP) * (len(header) - 1)
    heads = [[name] for name in header]
    cells = [[row[i] for row in rows] for i in range(len(header))]
    widths = _widths(heads, cells)
    if sum(widths) > room:
        heads = [
            _halves(name) if side == "r" else [name]
            for name, side in zip(header, right, strict=True)
        ]
        widths = _widths(heads, cells)
    if sum(widths) > room:
        cells = [[without_function(text) for text in column] for column in cells]
        widths = _widths(heads, cells)
    while sum(widths) > room:
        # What goes on below gives way first: nothing of it is lost.
        ranks = [
            (side == "w" and width > _LEAST_WRAPPED, width, -i)
            for i, (width, side) in enumerate(zip(widths, right, strict=True))
            if side != "r"
        ]
        widths[-max(ranks)[2]] -= 1
    height = max(map(len, heads))
    heads = [[""] * (height - len(name)) + name for name in heads]
    columns = [_column(*of) for of in zip(cells, widths, right, strict=True)]
    if told_apart_in is not None:
        i, k = told_apart_in
        both = widths[i], widths[k]
        heads[i][-1], heads[k][-1] = told_apart(header[i], header[k], both)
        pairs = [_pair(*texts, both) for texts in zip(cells[i], cells[k], strict=True)]
        columns[i], columns[k] = ([pair[side] for pair in pairs] for side in (0, 1))
    lines: list[str] = []
    for row in (heads, [["-" * w] for w in widths], *zip(*columns, strict=True)):
        for texts in itertools.zip_longest(*row, fillvalue=""):
            parts = [
                text.rjust(w) if side == "r" else shortened(text, w).ljust(w)
                for text, w, side in zip(texts, widths, right, strict=True)
            ]
            lines.append(GAP.join(parts).rstrip())
    return lines


def _widths(heads: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, (*head, *column))) for head, column in zip(heads, cells, strict=True)]


def _halves(name: str) -> list[str]:
    first, hyphen, second = name.partition("-")
    return [first + hyphen, second] if second else [name]


def _column(texts: Sequence[str], width: int, side: str) -> list[list[str]]:
    """Return the lines of each cell of a column."""
    if side == "r":
        return [[text] for text in texts]
    if side == "w":
        return [_wrapped(text, width) for text in texts]
    labels = [shortened(text, width) for text in texts]
    meant: dict[str, set[str]] = {}
    for text, label in zip(texts, labels, strict=True):
        meant.setdefault(label, set()).add(text)
    return [
        _wrapped(text, width) if len(meant[label]) > 1 else [label]
        for text, label in zip(texts, labels, strict=True)
    ]


def _pair(first: str, second: str, widths: tuple[int, int]) -> tuple[list[str], list[str]]:
    """Return the lines of two cells, whole or, where that would be many, told apart."""
    whole = _wrapped(first, widths[0]), _wrapped(second, widths[1])
    if max(map(len, whole)) <= _MOST_LINES:
        return whole
    short = told_apart(first, second, widths)
    return [short[0]], [short[1]]


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text; those of layouts end between two of them, if they can."""
    lines = [""]
    for piece in _END.split(text):
        if len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines if line] or [""]


def with_more(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the first rows of a table, and a row that says how many are left out.

    Args:
        rows: All rows.
    """
    if len(rows) <= MAX_ROWS:
        return rows
    rest = [""] * (len(rows[0]) - 1)
    return [*rows[:MAX_ROWS], (f"... and {len(rows) - MAX_ROWS} more", *rest)]


def largest_rows(
    rows: Sequence[tuple[float, tuple[str, ...]]], of: str, small_share: float = 0.0
) -> list[tuple[str, ...]]:
    """Return the largest rows of a table, largest first, and one that says what is left out.

    Args:
        rows: For each row its size and its cells.
        of: What the sizes are, as `bytes`.
        small_share: The smallest rows that make this share of all together are left out; others
            only where there are too many.
    """
    ordered = sorted(rows, key=lambda row: -row[0])
    total = math.fsum(size for size, _ in rows)
    few, left = len(ordered), 0.0
    while few and (few > SHORT_ROWS or left + ordered[few - 1][0] < small_share * total):
        few -= 1
        left += ordered[few][0]
    if len(ordered) - few <= 1:
        return [row for _, row in ordered]
    share = f" ({left / total:.1%} of the {of})" if total else ""
    more = f"{len(ordered) - few} more in the full text{share}"
    return [*(row for _, row in ordered[:few]), (more, *[""] * (len(rows[0][1]) - 1))]


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


def ranges_text(numbers: Iterable[int]) -> str:
    """Return numbers as runs, as `0-11, 14`; each comes once."""
    runs: list[str] = []
    for _, run in itertools.groupby(enumerate(dict.fromkeys(numbers)), lambda x: x[1] - x[0]):
        found = [number for _, number in run]
        runs.append(range_text(found[0], found[-1]))
    return ", ".join(runs)
