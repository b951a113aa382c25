"""Paths of arguments as the user writes them: `0/params/emb` is `state.params['emb']`.

Pins name arguments by their paths, which do not tell an attribute from a key.  So a plan keeps
pairs (path, its last key as Python writes it).  There is a pair for the name of each argument, and
for each key that `default_key` would write otherwise, that holds a "/", or that looks like a member
of a stack of layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# A member of a stack of layers that is taken apart, as `0/blocks/kernel[3]`.
_MEMBER = re.compile(r"(.+?)((?:\[\d+\])+)")


def default_key(key: str) -> str:
    """Return a key of a path as Python writes it, if it is an index or the key of a dict."""
    return f"[{key}]" if key.isdecimal() else f"[{key!r}]"


def is_told(key: str, word: str) -> bool:
    """Return whether a plan keeps how a key of a path is written: `spelled` would not know.

    Args:
        key: The key, as paths have it.
        word: The key, as Python writes it.
    """
    return word != default_key(key) or "/" in key or _MEMBER.fullmatch(key) is not None


def spelled(path: str, spelling: Mapping[str, str]) -> tuple[str, ...]:
    """Return the name of an argument and its keys, which joined are what the user writes.

    Args:
        path: The path of an argument, or of a part of one.
        spelling: What a plan keeps.  It is empty in older files: then the path is returned with
            its separators, as ("0/", "params/", "emb").
    """
    member = _MEMBER.fullmatch(path)
    if member is not None and path not in spelling:
        return (*spelled(member[1], spelling), member[2])
    keys = path.split("/")
    if not spelling:
        return (*(f"{key}/" for key in keys[:-1]), keys[-1])
    words: list[str] = []
    start = 0
    while start < len(keys):
        start, word = _next(keys, start, spelling)
        words.append(word)
    return tuple(words)


def _next(keys: list[str], start: int, spelling: Mapping[str, str]) -> tuple[int, str]:
    """Return where the next word ends, and the word; a key may hold separators itself."""
    for end in range(start + 1, len(keys) + 1):
        word = spelling.get("/".join(keys[:end]), "")
        if word and word.count("/") == end - start - 1:
            return end, word
    return start + 1, default_key(keys[start]) if start else keys[0]
