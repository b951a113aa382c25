"""Text as bytes: which files, how they are split, and which windows a step sees.

A step's batch is a pure function of (corpus, seed, step).  So the position in the data is the
step number: a resumed run needs nothing else to go on with the same batches.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwise.errors import MeshwiseError

# One file of 16 is held out, chosen by its name: the split survives other files coming and going.
HELDOUT_ONE_IN = 16
# With too few files for that, the last part of the text is held out.
HELDOUT_TAIL_SHARE = 0.1
FILE_SEPARATOR = b"\0"

# Not every distribution of Python ships its own tests, and installed packages are not Python's.
_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corpus:
    """Text to learn from.

    Attributes:
        name: Where it came from, for display.
        train: Bytes to learn from, files joined by a zero byte.
        heldout: Bytes that are only looked at, never learned from.
        num_files: Files in both parts.
        fingerprint: SHA-256 of both parts, in hexadecimal.
    """

    name: str
    train: NDArray[np.uint8]
    heldout: NDArray[np.uint8]
    num_files: int
    fingerprint: str

    def batch_at(
        self, step: int, *, batch: int, seq: int, seed: int
    ) -> dict[str, NDArray[np.int32]]:
        """Return the windows that a step trains on.

        Returns:
            `x` and `y`, `[batch, seq]`: bytes, and for each the byte that follows.
        """
        rng = np.random.Generator(np.random.Philox(key=[seed, step]))
        starts = rng.integers(len(self.train) - seq, size=batch)
        return _windows(self.train, starts.tolist(), seq)

    def heldout_batches(
        self, *, num_batches: int, batch: int, seq: int
    ) -> Iterator[dict[str, NDArray[np.int32]]]:
        """Yield the same windows at every look, evenly spread over the held-out text."""
        starts = np.linspace(0, len(self.heldout) - seq - 1, num_batches * batch).astype(int)
        for first in range(0, len(starts), batch):
            yield _windows(self.heldout, starts[first : first + batch].tolist(), seq)


def _windows(
    text: NDArray[np.uint8], starts: Sequence[int], seq: int
) -> dict[str, NDArray[np.int32]]:
    rows = np.stack([text[start : start + seq + 1] for start in starts]).astype(np.int32)
    return {"x": rows[:, :-1], "y": rows[:, 1:]}


def load_corpus(text: Path | None, *, seq: int) -> Corpus:
    """Read a file, a folder, or (None) the source files of Python's standard library.

    Files are taken in the order of their path below the folder.  Hidden files and files that
    hold a zero byte (they are not text) are left out.

    Raises:
        MeshwiseError: there is no text, or too little of it for one window of `seq` bytes.
    """
    if text is None:
        root = Path(sysconfig.get_path("stdlib"))
        name = f"Python {sysconfig.get_python_version()} standard library"
        paths = [p for p in _files_below(root) if p.suffix == ".py"]
    elif text.is_dir():
        root, name, paths = text, str(text), _files_below(text)
    elif text.is_file():
        root, name, paths = text.parent, str(text), [text]
    else:
        raise MeshwiseError(f"no text: {text} is neither a file nor a folder")
    files = [(p.relative_to(root).as_posix(), p.read_bytes()) for p in paths]
    files = [(path, data) for path, data in files if data and b"\0" not in data]
    return corpus_of(name, files, seq=seq)


def _files_below(root: Path) -> list[Path]:
    """Files below a folder, without the hidden and the skipped, ordered by path."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in _SKIPPED_FOLDERS and f[0] != "."]
        paths = [Path(folder, name) for name in names if name[0] != "."]
        # Pipes, devices and links to nothing hold no text.
        found += [path for path in paths if path.is_file()]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def corpus_of(name: str, files: Sequence[tuple[str, bytes]], *, seq: int) -> Corpus:
    """Split files, given as (path, content), and join each part.

    Raises:
        MeshwiseError: a part is too short for one window of `seq` bytes.
    """
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path, data in files:
        parts[zlib.crc32(path.encode()) % HELDOUT_ONE_IN == 0].append(data)
    train, heldout = (FILE_SEPARATOR.join(part) for part in parts)
    if min(len(train), len(heldout)) <= seq:
        whole = FILE_SEPARATOR.join(data for _, data in files)
        cut = len(whole) - int(len(whole) * HELDOUT_TAIL_SHARE)
        train, heldout = whole[:cut], whole[cut:]
    if min(len(train), len(heldout)) <= seq:
        raise MeshwiseError(
            f"too little text in {name}: {len(train)} bytes to learn from and {len(heldout)} held "
            f"out, but a sequence takes {seq + 1}; give more text or a smaller --seq"
        )
    return Corpus(
        name=name,
        train=np.frombuffer(train, np.uint8),
        heldout=np.frombuffer(heldout, np.uint8),
        num_files=len(files),
        fingerprint=hashlib.sha256(b"%d:" % len(train) + train + heldout).hexdigest(),
    )
