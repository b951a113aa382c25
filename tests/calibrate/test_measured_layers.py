"""Times that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from meshwise.calibrate.measured_layers import KeptTimes, kept_folder
from meshwise.calibrate.timed_program import Exported, Measurable


def program(key: str) -> Measurable:
    return Measurable(name=f"program {key}", key=key, export=lambda: Exported(None, (), ()))


class Counted:
    """Every program takes as many seconds as its key is long; remembers who was measured."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, programs: Sequence[Measurable]) -> list[float]:
        self.asked += [p.key for p in programs]
        return [float(len(p.key)) for p in programs]


def test_equal_programs_are_measured_once(tmp_path: Path) -> None:
    measure = Counted()
    times = KeptTimes(measure, tmp_path / "new" / "folder")
    assert times([program("a"), program("bb"), program("a")]) == [1.0, 2.0, 1.0]
    assert times([program("ccc"), program("bb")]) == [3.0, 2.0]
    assert measure.asked == ["a", "bb", "ccc"]
    # In another process.
    again = Counted()
    assert KeptTimes(again, tmp_path / "new" / "folder")([program("bb")]) == [2.0]
    assert not again.asked


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": "x"}', '{"seconds": NaN}', "{}"])
def test_what_is_no_time_is_measured_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    measure = Counted()
    assert KeptTimes(measure, tmp_path)([program("a")]) == [1.0]
    assert measure.asked == ["a"]
    assert KeptTimes(Counted(), tmp_path)([program("a")]) == [1.0]


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    measure = Counted()
    assert KeptTimes(measure, place / "below")([program("a")]) == [1.0]


def test_the_folder_is_where_users_keep_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept_folder() == tmp_path / "meshwise" / "measured"
