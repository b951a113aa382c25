"""Names made shorter so that they still tell what they name."""

from __future__ import annotations

import re

# What follows a source line, as in `dot_general at model.py:7:9 (Block.__call__)`.
_FUNCTION = re.compile(r"( at \S+:\d+) \(.*\)$")
# An operator and its source line.
_PLACE = re.compile(r"(?P<what>.+?)(?P<at> at )(?P<file>\S+?)(?P<line>(:\d+)+)")
_LEFT_OUT = "..."
# So much of an operator's name stays where its file has a long path.
_LEAST_NAME = 10
# Of a path the end may have this share of the room: it tells most.
_END_SHARE = 2 / 3


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters, which tells most of it.

    Of an operator with its source line the function in brackets goes first, then the folders of the
    file, then the end of the operator's name; the end of the file's name and the line stay. Of a
    path the middle goes, by whole keys; of other texts the middle.

    Args:
        text: The text.
        width: The most characters that it may have.
    """
    if len(text) > width:
        text = without_function(text)
    if len(text) <= width:
        return text
    if width <= len(_LEFT_OUT):
        return text[:width]
    if place := _PLACE.fullmatch(text):
        return _shortened_place(place, width)
    if "/" in text:
        return _shortened_path(text, width)
    head = (width - len(_LEFT_OUT)) // 2
    return f"{text[:head]}{_end(text, width - head)}"


def without_function(text: str) -> str:
    """Return an operator with its source line, without the function in brackets.

    Args:
        text: The operator; other texts stay as they are.
    """
    return _FUNCTION.sub(r"\1", text)


def told_apart(first: str, second: str, widths: tuple[int, int]) -> tuple[str, str]:
    """Return two texts shortened, so that they differ where the texts do.

    Args:
        first: A text.
        second: Another.
        widths: The most characters that each may have, at least 10.
    """
    short = shortened(first, widths[0]), shortened(second, widths[1])
    if first == second or short[0] != short[1]:
        return short
    least = min(len(first), len(second))
    differs = next((i for i in range(least) if first[i] != second[i]), least)
    return _around(first, differs, widths[0]), _around(second, differs, widths[1])


def _around(text: str, position: int, width: int) -> str:
    """Return the part of a text around a position."""
    room = width - 2 * len(_LEFT_OUT)
    start = max(0, min(position - room // 2, len(text) - room))
    before = _LEFT_OUT if start else ""
    after = _LEFT_OUT if start + room < len(text) else ""
    return f"{before}{text[start : start + room]}{after}"


def _shortened_place(place: re.Match[str], width: int) -> str:
    what, at, line = place["what"], place["at"], place["line"]
    room = width - min(len(what), _LEAST_NAME) - len(at)
    if room <= len(line) + len(_LEFT_OUT):
        return _end(place[0], width)
    file = _shortened_path(place["file"], room - len(line))
    name_room = width - len(at) - len(file) - len(line)
    name = what if len(what) <= name_room else f"{what[: name_room - len(_LEFT_OUT)]}{_LEFT_OUT}"
    return f"{name}{at}{file}{line}"


def _shortened_path(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    keys = text.split("/")
    room = width - len(f"/{_LEFT_OUT}/")
    ends = [keys.pop()]
    if len(ends[0]) + len(f"{_LEFT_OUT}/") > width:
        return _end(text, width)
    while keys and len("/".join([keys[-1], *ends])) <= room * _END_SHARE:
        ends.insert(0, keys.pop())
    end = "/".join(ends)
    starts: list[str] = []
    while keys and len("/".join([*starts, keys[0], end])) <= room + 1:
        starts.append(keys.pop(0))
    return "/".join([*starts, _LEFT_OUT, end])


def _end(text: str, width: int) -> str:
    return f"{_LEFT_OUT}{text[len(text) - (width - len(_LEFT_OUT)) :]}"
