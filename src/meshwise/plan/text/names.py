"""Many names as few rows: those that differ in one place are told together, and none is lost.

`block_0/key`, `block_0/value`, `block_1/key` and `block_1/value` are `block_{0-1}/{key,value}`. A
text with braces stands for all combinations of what the braces hold, and for no other name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshwise.plan.text.columns import ranges_text

# Words, numbers and what divides them.
_TOKEN = re.compile(r"\d+|[./]|[^\d./]+")
# Longer lists of words are rows of their own.
_LONGEST = 72
# So many numbers with equal distances are written as `0-6 by 2`.
_FEWEST_STEPS = 4
_SLASH = frozenset({"/"})
# Two keys, with what stands before each.
_LEAST_END = 4
# For each token of a name the texts that may stand there.
_Tokens = tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedNames:
    """Names that are told together.

    Attributes:
        text: The names as one text.
        members: Their positions among the names that were given, in order.
    """

    text: str
    members: tuple[int, ...]


def joined_names(names: Sequence[str]) -> list[JoinedNames]:
    """Return names as few texts, each name in one of them; in the order of their first names.

    Args:
        names: The names; equal ones are told together.
    """
    rows: dict[_Tokens, list[int]] = {}
    for position, name in enumerate(names):
        tokens = tuple(frozenset({token}) for token in _TOKEN.findall(name))
        rows.setdefault(tokens, []).append(position)
    for are_numbers in (True, False, True):
        # A number at the start is the position of an argument of the step.
        for place in range(are_numbers, max(map(len, rows), default=0)):
            rows = _joined_at(rows, place, are_numbers=are_numbers)
    rows = _joined_roots(rows)
    ordered = sorted(rows.items(), key=lambda row: min(row[1]))
    return [JoinedNames(text=_text(t), members=tuple(sorted(found))) for t, found in ordered]


def _joined_at(
    rows: dict[_Tokens, list[int]], place: int, *, are_numbers: bool
) -> dict[_Tokens, list[int]]:
    """Join the rows that differ at one place alone."""
    groups: dict[object, list[_Tokens]] = {}
    for tokens in rows:
        fits = place < len(tokens) and all(_is_number(t) == are_numbers for t in tokens[place])
        key = (tokens[:place], tokens[place + 1 :]) if fits else (tokens, None)
        groups.setdefault(key, []).append(tokens)
    joined: dict[_Tokens, list[int]] = {}
    for group in groups.values():
        before = group[0]
        found = list(rows[before])
        for tokens in group[1:]:
            both = (*before[:place], before[place] | tokens[place], *before[place + 1 :])
            if are_numbers or len(_text(both)) <= _LONGEST:
                before = both
                found += rows[tokens]
            else:
                joined[before] = found
                before, found = tokens, list(rows[tokens])
        joined[before] = found
    return joined


def _joined_roots(rows: dict[_Tokens, list[int]]) -> dict[_Tokens, list[int]]:
    """Join rows that differ in their first keys alone, as parameters and their moments."""
    with_end: dict[_Tokens, list[_Tokens]] = {}
    for tokens in rows:
        for end in _ends(tokens):
            with_end.setdefault(end, []).append(tokens)
    joined: dict[_Tokens, list[int]] = {}
    done: set[_Tokens] = set()
    for tokens in rows:
        if tokens in done:
            continue
        # The longest end comes first.
        for end in _ends(tokens):
            group = [other for other in with_end[end] if other not in done]
            roots = frozenset(_text(other[: len(other) - len(end)]) for other in group)
            both = (roots, *end)
            if len(group) > 1 and len(_text(both)) <= _LONGEST:
                break
        else:
            group, both = [tokens], tokens
        joined[both] = [member for other in group for member in rows[other]]
        done.update(group)
    return joined


def _ends(tokens: _Tokens) -> Iterator[_Tokens]:
    """Yield the last keys of a name, two or more of them, the most first."""
    for place in range(1, len(tokens) - _LEAST_END + 1):
        if tokens[place] == _SLASH:
            yield tokens[place:]


def _is_number(text: str) -> bool:
    return text.isdecimal() and text == str(int(text))


def _text(tokens: _Tokens) -> str:
    return "".join(next(iter(t)) if len(t) == 1 else f"{{{_alternatives(t)}}}" for t in tokens)


def _alternatives(texts: frozenset[str]) -> str:
    if all(map(_is_number, texts)):
        return numbers_text(map(int, texts)).replace(", ", ",")
    return ",".join(sorted(texts, key=lambda text: (len(text), text)))


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers as runs, as `0-11, 14`, or those with equal distances as `0-46 by 2`.

    Args:
        numbers: The numbers, in any order.
    """
    ordered = sorted(set(numbers))
    steps = {b - a for a, b in itertools.pairwise(ordered)}
    if len(steps) == 1 and 1 not in steps and len(ordered) >= _FEWEST_STEPS:
        return f"{ordered[0]}-{ordered[-1]} by {steps.pop()}"
    return ranges_text(ordered)
