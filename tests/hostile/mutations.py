"""Valid files made hostile: their bytes, and what stands in them.

Hypothesis draws the changes, so that a failure shrinks to few of them.
"""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

# Marks in texts: of a token that stands in the file as it is, and of a key that stands twice.
_RAW, _TWICE = "\x01", "\x02"


def raw(token: str) -> str:
    """Return what `json_of` and `toml_of` write as this token, without quotes."""
    return f"{_RAW}{token}{_RAW}"


HOSTILE: tuple[Any, ...] = (
    None, True, False, "", " ", "x", "-", "1", "R", "S0", "S00", "S9", "R via R group 7", "nan",
    "../../../../tmp/hostile", "/dev/zero", "/etc/passwd", "a\x00b", "\ud800", "٣", "²", "'\"\\",
    "one-program", "1f1b", "gpipe", "8x p3.16xlarge",
    "x" * 100_000, "R " * 30_000, "R group " + "7" * 5000, "S" + "0" * 5000,
    -1, 0, 1, 2, 3, 7, 8, 10**6, 10**9, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**70),
    0.5, -0.5, 1.0, 1e-300, 5e-324, 1e18, 1e200, 1e308, -1e308,
    raw("1e400"), raw("-1e400"), raw("NaN"), raw("Infinity"), raw("-Infinity"), raw("-0"),
    raw("9" * 5000), raw("1." + "3" * 5000), raw("nul"), raw("0x10"), raw("nan"), raw("inf"),
    raw("1979-05-27T07:32:00Z"), raw("[" * 5000 + "]" * 5000), raw("[" * 100_000),
    raw('{"a":' * 5000 + "1" + "}" * 5000), [], {}, [[]], [None], {"a": 1}, {"": {}},
    [0] * 10_000, [[] for _ in range(5000)], [[0, 1] for _ in range(5000)], ["x"] * 5000,
)  # fmt: skip


def documents(
    given: Sequence[Any], write: Callable[[Any], bytes], *, twice: bool = True
) -> st.SearchStrategy[bytes]:
    """Return files whose values, keys or lists were changed in one to three places.

    Args:
        given: Valid documents: tables, lists, numbers and texts.
        write: Returns the file of a document.
        twice: Whether keys may stand twice.
    """

    @st.composite
    def changed(draw: st.DrawFn) -> bytes:
        document = copy.deepcopy(draw(st.sampled_from(given)))
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
            _change(draw, document, twice)
        return write(document)

    return changed()


def _change(draw: st.DrawFn, document: Any, twice: bool) -> None:
    """Change one place of a document."""
    places = list(itertools.islice(_places(document), 20_000))
    if not places:
        return
    holder, key = draw(st.sampled_from(places))
    kinds = ["set", "alike", "alike", "alike", "drop", "add", "swap", "more", "scale"]
    match draw(st.sampled_from(kinds)):
        case "set":
            holder[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))
        case "drop":
            del holder[key]
        case "add" if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(draw(st.sampled_from([holder[key], *HOSTILE]))))
        case "add":
            name = _TWICE + str(key) if twice and draw(st.booleans()) else draw(_KEYS)
            holder[name] = copy.deepcopy(draw(st.sampled_from([holder[key], *HOSTILE])))
        case "swap":
            other, place = draw(st.sampled_from(places))
            # A copy: nothing holds itself.
            holder[key] = copy.deepcopy(other[place])
        case "more" if isinstance(holder[key], list) and 0 < len(holder[key]) < 1000:
            # Copies: no list is in two places.
            times = draw(st.integers(2, 50))
            holder[key] = [copy.deepcopy(v) for _ in range(times) for v in holder[key]]
        case "alike" if alike := [v for v in HOSTILE if type(v) is type(holder[key])]:
            holder[key] = copy.deepcopy(draw(st.sampled_from(alike)))
        case _ if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = draw(st.sampled_from([-1, 2, 0.5, 1000, 10**9, 1e100])) * holder[key]
        case _:
            holder[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))


_KEYS = st.sampled_from(["", "x", "name", "../x", "__class__", "a.b", "\x00", "é", "x" * 1000])


def _places(value: Any) -> Any:
    """Yield each place of a document: what holds it, and its key or number."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def damaged(given: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return files of which bytes were changed, cut off, put in or doubled, in one to four places.

    Args:
        given: Valid files.
    """

    @st.composite
    def changed(draw: st.DrawFn) -> bytes:
        data = bytearray(draw(st.sampled_from(given)))
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, max(len(data) - 1, 0)))
            match draw(
                st.sampled_from(["flip", "set", "cut", "insert", "double", "drop", "front"])
            ):
                case "flip" if data:
                    data[at] ^= 1 << draw(st.integers(0, 7))
                case "set" if data:
                    data[at] = draw(st.integers(0, 255))
                case "cut":
                    del data[at:]
                case "insert":
                    data[at:at] = draw(st.sampled_from(_PIECES))
                case "double":
                    end = at + draw(st.integers(1, 200))
                    data[at:at] = data[at:end]
                case "drop":
                    del data[at : at + draw(st.integers(1, 200))]
                case _:
                    data[:0] = draw(st.sampled_from(_PIECES))
        return bytes(data)

    return changed()


_PIECES = (
    b"\xff", b"\x80\x81", b"\xed\xa0\x80", b"\x00", b"\x00" * 1000, b"\xef\xbb\xbf", b"\xff\xfe",
    b"\x1f\x8b", b"\x1f\x8b\x08\x00", b"[", b"]", b"{", b"}", b'"', b",", b"\n", b"\r", b"#",
    b"[" * 20_000, b'{"a":' * 20_000, b" " * 100_000, b"1" * 6000, b"e999", b"-", b"NaN",
    b"\\u0000", b'"a" = 1\n', b"[[hosts]]\n", b"a." * 1000, b"/*", b"'''",
)  # fmt: skip


def json_of(document: Any) -> bytes:
    """Return the JSON of a document."""
    text = json.dumps(document)
    text = re.sub(r'"\\u0001(.*?)\\u0001"', lambda found: json.loads(f'"{found[1]}"'), text)
    return text.replace("\\u0002", "").encode()


def toml_of(document: Any) -> bytes:
    """Return the TOML of a table, a key a line, tables and lists within these."""
    lines = (f"{_toml(str(key))} = {_toml(value)}\n" for key, value in document.items())
    return "".join(lines).replace("\\u0002", "").encode("utf-8", errors="surrogatepass")


def _toml(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case str() if value.startswith(_RAW):
            return value.strip(_RAW)
        case str():
            return json.dumps(value, ensure_ascii=not value.isprintable())
        case bool():
            return "true" if value else "false"
        case None:
            return '""'
        case _:
            return repr(value)


def packed(data: bytes) -> bytes:
    """Return a file as gzip."""
    return gzip.compress(data, 1, mtime=0)


@cache
def bomb(start: bytes, piece: bytes, count: int) -> bytes:
    """Return a small gzip file of a long text, which is never there whole."""
    many = piece * max(2**20 // len(piece), 1)
    times = count * len(piece) // len(many) + 1
    # What is flushed fully can stand many times, and is packed once.
    first, again, last = (zlib.compressobj(9, zlib.DEFLATED, bits) for bits in (31, -15, -15))
    head = first.compress(start) + first.flush(zlib.Z_FULL_FLUSH)
    body = again.compress(many) + again.flush(zlib.Z_FULL_FLUSH)
    check = zlib.crc32(start)
    for _ in range(times):
        check = zlib.crc32(many, check)
    size = (len(start) + times * len(many)) % 2**32
    return head + body * times + last.flush() + struct.pack("<II", check, size)
