"""What ended a job is said to whoever started it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshwise.system.cause_file import CAUSE_FILE, Cause, first_cause, write_cause


def test_the_first_of_several_causes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / str(n) for n in range(3)]
    assert first_cause(files) is None
    for n in (2, 1):
        monkeypatch.setenv(CAUSE_FILE, str(files[n]))
        write_cause(n, f"cause {n}")
        os.utime(files[n], (100 - n, 100 - n))
    assert first_cause(files) == Cause(process=2, text="cause 2")


def test_where_there_is_no_place_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CAUSE_FILE, raising=False)
    write_cause(0, "nobody asks")
    monkeypatch.setenv(CAUSE_FILE, str(tmp_path / "gone" / "file"))
    write_cause(0, "nobody asks")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"a"', '{"text": 3}', "\xff"])
def test_a_file_that_says_no_cause_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "cause").write_bytes(text.encode("latin-1"))
    assert first_cause([tmp_path / "cause"]) is None
