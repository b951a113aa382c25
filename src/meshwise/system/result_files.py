"""Results that are kept for later processes: a file for each key, no more than so many bytes.

A file holds a digest, and then the result, packed; the digest is of the key and of what follows.
A file that is damaged, cut short, too long or unreadable counts as not there, and so does one that
another process removes meanwhile.
Files are written whole or not at all; of two processes that write one key the last one wins.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from contextlib import suppress
from pathlib import Path

from meshwise.system.atomic_file import write_atomically
from meshwise.system.bounded_folder import files, trim

# Of one result, packed and unpacked; a longer one is not kept.
_MOST_PACKED, _MOST_BYTES = 2**24, 2**27
_DIGEST_BYTES = 32
# A fast level: results are written by the thousand.
_LEVEL = 1
_SUFFIX = ".result"
# Files of writers that were killed.
_SCRATCH = ".part"


class ResultFiles:
    """The files of one folder; it may be shared by any number of processes."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """Take the folder; nothing is read or made yet.

        Args:
            folder: The folder, which nobody else can write.
            most_bytes: The most bytes of all files together, after `trim`.
        """
        self.folder, self.most_bytes = folder, most_bytes

    def read(self, key: str) -> bytes | None:
        """Return the result of a key; None if there is no whole one."""
        path = self._path(key)
        with suppress(OSError, zlib.error):
            with path.open("rb") as file:
                data = file.read(_MOST_PACKED + 1)
            packed = data[_DIGEST_BYTES:]
            if len(data) > _MOST_PACKED or _digest(key, packed) != data[:_DIGEST_BYTES]:
                return None
            unpacking = zlib.decompressobj()
            found = unpacking.decompress(packed, _MOST_BYTES)
            if not unpacking.eof:
                return None
            # What was used longest ago is removed first.
            os.utime(path)
            return found
        return None

    def write(self, key: str, result: bytes) -> None:
        """Keep a result, if it is not too long and the folder can be written."""
        packed = zlib.compress(result, _LEVEL)
        if len(result) > _MOST_BYTES or _DIGEST_BYTES + len(packed) > _MOST_PACKED:
            return
        with suppress(OSError):
            write_atomically(self._path(key), _digest(key, packed) + packed)

    def trim(self) -> None:
        """Remove what was used longest ago, if all files together are above the bound."""
        trim(self.folder, self.most_bytes, (_SUFFIX, _SCRATCH))

    def num_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(size for _, size, _ in files(self.folder, (_SUFFIX, _SCRATCH)))

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}{_SUFFIX}"


def _digest(key: str, packed: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + packed).digest()
