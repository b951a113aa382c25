"""Files that Meshwise keeps for itself, damaged, are as if they were not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile.bounds import bounded
from hostile.mutations import bomb, damaged, documents, json_of, packed, raw
from hostile.searches import COUNTS, MANY, search
from meshwise.calibrate.measured_layers import KeptTimes
from meshwise.calibrate.timed_program import Exported, Measurable
from meshwise.targets.compiler import AnswerFolder
from meshwise.train.corpus import load_corpus

ANSWER = {
    "memory": {"argument_bytes": 1, "output_bytes": 2, "alias_bytes": 3, "temporary_bytes": 4},
    "text": "HloModule jit_f",
    "seconds": 1.5,
}
TIME = {"seconds": 0.5, "program": "layer 1", "date": "2026-11-26"}


def check_answer(folder: Path) -> Callable[[bytes], None]:
    """Return the check of an answer of a compiler."""

    def check(data: bytes) -> None:
        (folder / "key.json.gz").write_bytes(data)
        with bounded():
            found = AnswerFolder(folder).read("key")
        if found is not None:
            assert 0 <= found.seconds < float("inf")
            assert found.text.isprintable() is not None
            assert abs(found.memory.peak_bytes) < 2**65

    return check


def check_time(folder: Path) -> Callable[[bytes], None]:
    """Return the check of a measured time."""
    program = Measurable(name="layer", key="key", export=lambda: Exported(None, (), ()))

    def check(data: bytes) -> None:
        (folder / "key.json").write_bytes(data)
        with bounded():
            (seconds,) = KeptTimes(lambda programs: [7.0] * len(programs), folder)([program])
        assert 0 < seconds < float("inf")

    return check


@pytest.mark.parametrize("count", COUNTS)
def test_answers_of_compilers(count: int, tmp_path: Path) -> None:
    check = check_answer(tmp_path)
    search(documents([ANSWER], lambda document: packed(json_of(document))), check, count)
    search(damaged([packed(json_of(ANSWER))]), check, count)
    if count == MANY:
        check(bomb(b"{", b" ", 2**29))
    check(packed(b"[" * 10**6))


@pytest.mark.parametrize("count", COUNTS)
def test_measured_times(count: int, tmp_path: Path) -> None:
    check = check_time(tmp_path)
    search(documents([TIME], json_of), check, count)
    search(damaged([json_of(TIME)]), check, count)
    check(json_of({"seconds": 10**400}))
    check(json_of({"seconds": raw("NaN")}))
    check(b"[" * 10**6)


def test_text_to_learn_from_stands_in_regular_files(tmp_path: Path) -> None:
    """A pipe would be waited for, a device never end."""
    (tmp_path / "a.txt").write_text("learn " * 100)
    (tmp_path / "endless.txt").symlink_to("/dev/zero")
    (tmp_path / "nothing.txt").symlink_to("not-there")
    os.mkfifo(tmp_path / "pipe.txt")
    with bounded(limit_s=10.0):
        corpus = load_corpus(tmp_path, seq=8)
    assert corpus.num_files == 1
