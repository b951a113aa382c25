"""Text of files that others may have written: read up to a size, and safe to show on a terminal."""

from __future__ import annotations

import unicodedata
from typing import IO

# Control characters, of which terminals make commands, and halves of characters, which no file
# can hold.
_NOT_PLAIN = ("Cc", "Cs")
_SPACES = "\t\n"


def text_of(file: IO[bytes], most_bytes: int) -> str:
    """Return the text of a file.

    Args:
        file: The file, in UTF-8.
        most_bytes: A longer one is refused before it fills the memory.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too long, or not UTF-8.
    """
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"more than {most_bytes >> 20} MiB, so it is something else")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8; save it as UTF-8") from error


def is_plain(text: str) -> bool:
    """Return whether a text holds no control characters but tabs and line ends."""
    return text.isprintable() or not any(
        unicodedata.category(c) in _NOT_PLAIN and c not in _SPACES for c in text
    )


def without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the object of JSON that has these pairs; for `json.loads(object_pairs_hook=)`.

    Raises:
        ValueError: a key stands twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key[:60]!r} stands twice")
            seen.add(key)
    return found
