"""Reads JSON of any size a piece at a time, so that text and numbers are never there at once.

Lists of lists of numbers, which large files consist of, become arrays as they are read; all else
is what `json` makes of it.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 22
# What is not read in pieces, in characters: a list of numbers takes up to ten times as many bytes,
# and other values, of which few are needed, up to 24 times as many.
_FIRST_LOOK, _LONGEST_VALUE = 1 << 15, 1 << 23
_LONGEST_ROW = 1 << 25
# Of a whole document, and of the values in it that were read whole.
_MOST_TEXT, _MOST_OTHER = 1 << 32, 1 << 25
# Real problems are up to 64 times as long as what they are packed into, zeros alone 1000 times.
_MOST_UNPACKED, _ANY_UNPACKED = 256, 1 << 26
# Where the text ends within a number or a word, the error is at most so far before its end.
_LONGEST_WORD = 64
_SPACE = re.compile(r"[ \t\n\r]*")
_END_OF_ROWS = re.compile(r"\][ \t\n\r]*\]")


class OutOfTimeError(Exception):
    """The deadline passed before all was read."""


@contextmanager
def opened(path: Path) -> Generator[IO[bytes], None, None]:
    """Return a file, plain or gzip, whose contents are read once and in order."""
    # Buffered, so that it can be looked at ahead even if it is a pipe.
    with path.open("rb") as file:
        if file.peek(2)[:2] != _GZIP_MAGIC:
            yield file
            return
        counted = _Counted(file)
        with gzip.GzipFile(fileobj=cast("IO[bytes]", counted)) as unpacked:
            yield cast("IO[bytes]", _Unpacked(unpacked, counted))


class _Counted:
    """A file that counts what is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.num_bytes += len(data)
        return data


class _Unpacked:
    """What a gzip file holds, unless that is far more than one of its size can mean."""

    def __init__(self, file: gzip.GzipFile, packed: _Counted) -> None:
        self.file = file
        self.packed = packed
        self.num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.num_bytes += len(data)
        if self.num_bytes > _ANY_UNPACKED + _MOST_UNPACKED * self.packed.num_bytes:
            raise gzip.BadGzipFile(f"it unpacks to more than {_MOST_UNPACKED} times its size")
        return data


class JsonStream:
    """A JSON document on its way in.

    Args:
        file: The text, in UTF-8.
        deadline: Moment of `time.monotonic`, in seconds; None to read however long it takes.
    """

    def __init__(self, file: IO[bytes], deadline: float | None = None) -> None:
        self.file = file
        self.deadline = deadline
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.json = json.JSONDecoder()
        self.text = ""
        self.at = 0
        # Characters that were dropped before `text`.
        self.before = 0
        self.is_all = False
        # Characters in values that were read whole.
        self.num_other = 0

    def next(self) -> str:
        """Return the next character that is no space, and leave it there; empty at the end."""
        while True:
            found = _SPACE.match(self.text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if self.is_all:
                return ""
            self._read()

    def take(self, *wanted: str) -> str:
        """Step over one of the characters, spaces before it included."""
        found = self.next()
        if found not in wanted or not found:
            self._fail(f"Expecting {' or '.join(map(repr, wanted))}", self.at)
        self.at += 1
        return found

    def value(self) -> object:
        """Read any value, whole."""
        if not self.next():
            self._fail("Expecting value", self.at)
        size = _FIRST_LOOK
        while True:
            text = self.text[self.at : self.at + size]
            is_all = self.is_all and self.at + size >= len(self.text)
            try:
                found, end = self.json.raw_decode(text)
            except json.JSONDecodeError as error:
                is_cut = error.pos >= len(text) - _LONGEST_WORD or "Untermin" in error.msg
                if is_all or not is_cut:
                    self._fail(error.msg, self.at + error.pos)
            else:
                # A number at the end of what was looked at may go on.
                if end < len(text) or is_all:
                    return self._other(found, end)
            if self.at + size > len(self.text):
                self._read()
            elif size == _LONGEST_VALUE:
                self._fail("Value of more than 8 MiB", self.at)
            size = min(4 * size, _LONGEST_VALUE)

    def _other(self, found: object, length: int) -> object:
        self.at += length
        self.num_other += length
        if self.num_other > _MOST_OTHER:
            self._fail("More than 32 MiB that are no costs or usages", self.at)
        return found

    def members(self, member: Callable[[str], None]) -> None:
        """Read an object; `member` is called with each key and takes the value."""
        self.take("{")
        if self.next() == "}":
            self.at += 1
            return
        while True:
            if self.next() != '"':
                self._fail("Expecting property name enclosed in double quotes", self.at)
            key = str(self.value())
            self.take(":")
            member(key)
            if self.take(",", "}") == "}":
                return

    def rows(self, take: Callable[[list[object]], None]) -> None:
        """Read a list; `take` is given its elements, some at a time."""
        self.take("[")
        if self.next() == "]":
            self.at += 1
            return
        while True:
            piece, is_last = self._some_rows()
            try:
                rows = self.json.decode(f"[{piece}]")
            except json.JSONDecodeError:
                # Not lists of numbers, or no JSON: what it is shows if it is read as any value.
                self.before += self.at - 1
                self.text, self.at = "[" + self.text[self.at :], 0
                take(cast("list[object]", self.value()))
                return
            self.at += len(piece)
            take(rows)
            if self.take("]" if is_last else ",", "]") == "]":
                return

    def end(self) -> None:
        """Nothing but spaces may follow."""
        if self.next():
            self._fail("Extra data", self.at)

    def _some_rows(self) -> tuple[str, bool]:
        """Return the text of the next elements that hold no lists, and whether all are there."""
        size = _PIECE
        while True:
            limit = min(self.at + size, len(self.text))
            is_end = limit == len(self.text)
            found = _END_OF_ROWS.search(self.text, self.at, limit)
            end = found.start() if found else self.text.rfind("]", self.at, limit)
            if end >= 0 and not (found is None and self.is_all and is_end):
                return self.text[self.at : end + 1], found is not None
            if is_end and self.is_all:
                return "", False
            if size >= _LONGEST_ROW:
                self._fail("List of more than 32 MiB", self.at)
            if is_end:
                self._read(max(_PIECE, len(self.text) - self.at))
            else:
                size *= 2

    def _read(self, size: int = _PIECE) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise OutOfTimeError
        data = self.file.read(size)
        self.is_all = not data
        self.before += self.at
        if self.before > _MOST_TEXT:
            self._fail("More than 4 GiB", 0)
        self.text = self.text[self.at :] + self.decoder.decode(data, final=self.is_all)
        self.at = 0

    def _fail(self, what: str, at: int) -> None:
        raise ValueError(f"{what} (character {self.before + at})")
