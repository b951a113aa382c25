"""Pieces of HTML and SVG.  Whatever comes from a plan passes through `escaped`."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from meshwise.plan.text.device_memory import MemoryCheck

# Width of a picture as wide as the page, in pixels.
WIDTH = 1180
# Colours of stages; they repeat, so a number always stands beside them.  Dark text is read on each.
STAGE_COLOURS = (
    "#8bbcec", "#f3b970", "#90d3a4", "#ea9aa6", "#bda9e6", "#e8d671",
    "#7fd3d6", "#dcae95", "#b0cc7c", "#e6a5d6", "#adbccd", "#d1bd7c",
)  # fmt: skip


def escaped(text: object) -> str:
    """Return the text that is safe between tags and in attributes, and can be written as UTF-8."""
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"), quote=True)


def stage_class(number: int) -> str:
    """Return the class that gives a stage its colour."""
    return f"s{number % len(STAGE_COLOURS)}"


def stage_rules() -> str:
    """Style rules of the colours of stages."""
    return "\n".join(
        f"svg .s{k} {{ fill: {colour}; }} .badge.s{k} {{ background: {colour}; }}"
        for k, colour in enumerate(STAGE_COLOURS)
    )


def memory_banner(check: MemoryCheck) -> str:
    """Return whether the plan fits into memory; a red banner where it does not."""
    sentence = escaped(check.sentence[0].upper() + check.sentence[1:])
    if check.fits:
        return f'<p class="fits">{sentence}.</p>'
    return f'<p class="over" role="alert">{sentence}</p>'


def num(value: float) -> str:
    """Return a coordinate: hundredths of a pixel."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def rect(
    box: tuple[float, float, float, float], kind: str, tip: str = "", round_: float = 0
) -> str:
    """Return a rectangle.

    Args:
        box: Left, top, width and height, in pixels.
        kind: Its class.
        tip: Text that is shown where the pointer is over it.
        round_: Radius of its corners, in pixels.
    """
    x, y, width, height = map(num, box)
    more = f' rx="{num(round_)}"' if round_ else ""
    more += f' data-t="{escaped(tip)}"' if tip else ""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"{more}/>'


def label(x: float, y: float, text: object, kind: str = "") -> str:
    """Return a text; y is that of its base line."""
    more = f' class="{kind}"' if kind else ""
    return f'<text{more} x="{num(x)}" y="{num(y)}">{escaped(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> str:
    """Return a straight line."""
    return f'<path class="{kind}" d="M{num(x1)} {num(y1)}L{num(x2)} {num(y2)}"/>'


def picture(
    name: str, title: str, description: str, size: tuple[float, float], parts: Sequence[str]
) -> str:
    """Return an SVG with a title and a description for readers of screens.

    Args:
        name: Unique in the page.
        title: What it is.
        description: What is to be seen.
        size: Width and height in pixels.
        parts: Its elements.
    """
    width, height = size
    return (
        f'<svg viewBox="0 0 {num(width)} {num(height)}" role="img" '
        f'aria-labelledby="{name}-t" aria-describedby="{name}-d">'
        f'<title id="{name}-t">{escaped(title)}</title>'
        f'<desc id="{name}-d">{escaped(description)}</desc>' + "".join(parts) + "</svg>"
    )


def legend(items: Sequence[tuple[str, str]]) -> str:
    """Return a list of colours (CSS) and what they mean."""
    keys = "".join(
        f'<li><span class="key" style="background: {colour}"></span>{escaped(text)}</li>'
        for colour, text in items
    )
    return f'<ul class="legend">{keys}</ul>'


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str) -> str:
    """Return a table.

    Args:
        header: Name of each column, as HTML.
        rows: Cells, as HTML.
        right: One letter a column: `r` for numbers, `l` for text, `w` for text that may wrap.
    """
    kinds = {"r": ' class="n"', "w": ' class="name"', "l": ""}
    head = "".join(
        f'<th scope="col"{kinds[side] if side == "r" else ""}>{cell}</th>'
        for cell, side in zip(header, right, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kinds[side]}>{cell}</td>" for cell, side in zip(row, right, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def ticks(start: float, end: float, count: int) -> list[float]:
    """Round numbers from `start` to `end`, about `count` of them."""
    if not end > start:
        return [start]
    rough = (end - start) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * 0.999)
    first, last = math.ceil(start / step - 1e-9), math.floor(end / step + 1e-9)
    return [k * step for k in range(first, last + 1)]
