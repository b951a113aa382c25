"""Checksums of the files of a checkpoint.

They are written before the checkpoint gets its name, so one that is complete has them.  Each
process sums up the files that it has written itself, beside the others; the process that completes
the checkpoint sums up the rest and puts all into one file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CHECKSUMS = "checksums.json"
_OF_PROCESS = "checksums.process_"
# Orbax writes them when all else is there; the second one where an item has a folder by itself.
_WRITTEN_LATER = frozenset(("commit_success.txt", "_CHECKPOINT_METADATA"))
_CHUNK_BYTES = 1 << 22
# `zlib.crc32` and reads let other threads run.
_NUM_THREADS = 4


def sum_own_files(folder: Path, process: int) -> None:
    """Sum up the files that one process has written alone.

    Args:
        folder: Of an item of a checkpoint that is not complete yet.
        process: The number of the process.
    """
    own = folder / f"ocdbt.process_{process}"
    if own.is_dir():
        found = _sums({f"{own.name}/{name}": file for name, file in _files(own)})
        (folder / f"{_OF_PROCESS}{process}.json").write_text(json.dumps(found))


def sum_all_files(folder: Path) -> None:
    """Write the checksums of all files of an item, as its last file.

    Args:
        folder: Of an item that lacks nothing else.
    """
    known: dict[str, list[int]] = {}
    parts = [part for part in folder.iterdir() if part.name.startswith(_OF_PROCESS)]
    for part in parts:
        known |= json.loads(part.read_text())
        part.unlink()
    left = {name: file for name, file in _files(folder) if name not in known}
    sums = dict(sorted({**known, **_sums(left)}.items()))
    (folder / CHECKSUMS).write_text(json.dumps({"format": 1, "files": sums}))


def damage_of(folder: Path, part: int = 0, num_parts: int = 1) -> str:
    """Return what is wrong with the files of an item; empty if nothing is.

    Args:
        folder: Of the item.
        part: Every `num_parts`-th file is read, from this one on; that all are there is always
            looked at.
        num_parts: Among how many processes the files are shared out.

    Returns:
        A text; also empty if the item has no checksums.
    """
    if not (folder / CHECKSUMS).exists():
        return ""
    try:
        stored = _stored(json.loads((folder / CHECKSUMS).read_text()))
        files = dict(_files(folder))
        absent = sorted(stored.keys() - files.keys())
        if absent:
            return f"no file {folder / absent[0]}, which {folder / CHECKSUMS} names"
        mine = sorted(stored)[part::num_parts]
        found = _sums({name: files[name] for name in mine})
    except (OSError, ValueError, RecursionError) as error:
        return f"{folder / CHECKSUMS} or a file that it names cannot be read: {error}"
    for name in mine:
        (num_bytes, crc), (want_bytes, want_crc) = found[name], stored[name]
        if num_bytes != want_bytes:
            return f"{files[name]} has {num_bytes} bytes, {want_bytes} were written"
        if crc != want_crc:
            return f"{files[name]} holds other bytes than were written (their checksum differs)"
    return ""


def text_checksum(text: str) -> int:
    """Return the checksum of a text."""
    return zlib.crc32(text.encode())


def _stored(value: Any) -> dict[str, list[int]]:
    """Return what a file of checksums says.

    Raises:
        ValueError: it is none.
    """
    files = value.get("files") if isinstance(value, dict) else None
    if not isinstance(files, dict) or not files or value.get("format") != 1:
        raise ValueError("it is no list of checksums")
    for entry in files.values():
        if not isinstance(entry, list) or [type(x) for x in entry] != [int, int]:
            raise ValueError("an entry is no pair of numbers")
    return {name: entry for name, entry in files.items() if name not in _WRITTEN_LATER}


def _files(folder: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder, by name relative to it; not those that hold checksums."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path, f"{prefix}{path.name}/")
        elif path.name not in {CHECKSUMS, *_WRITTEN_LATER} and _OF_PROCESS not in path.name:
            yield prefix + path.name, path


def _sums(files: Mapping[str, Path]) -> dict[str, list[int]]:
    """Return the bytes and the CRC of each file."""
    if not files:
        return {}
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return dict(zip(files, threads.map(_sum, files.values()), strict=True))


def _sum(file: Path) -> list[int]:
    """Return the bytes and the CRC of a file."""
    num_bytes, crc = 0, 0
    # Not `open(file)`: the path may be one of Orbax, in a bucket.
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            num_bytes += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return [num_bytes, crc]
