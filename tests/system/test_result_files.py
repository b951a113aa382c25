"""Results that are kept in files: whole or not there, and no more of them than the bound."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from meshwise.system import result_files
from meshwise.system.result_files import ResultFiles

RESULT = b"what was found out" * 100


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_is_written_is_read_by_another_process(tmp_path: Path) -> None:
    ResultFiles(tmp_path, 2**20).write("a key\nof lines", RESULT)
    files = ResultFiles(tmp_path, 2**20)
    assert files.read("a key\nof lines") == RESULT
    assert files.read("another key") is None
    assert 0 < files.num_bytes() < len(RESULT)
    assert not list(tmp_path.glob("*.part"))


def test_a_folder_that_is_not_there_keeps_nothing(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path / "none", 2**20)
    files.write("key", RESULT)
    files.trim()
    assert files.read("key") is None
    assert files.num_bytes() == 0


def test_what_is_damaged_counts_as_not_there(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path, 2**20)
    files.write("key", RESULT)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    rng = random.Random(0)
    for place in range(len(whole)):
        other = whole[place] ^ rng.randrange(1, 256)
        path.write_bytes(whole[:place] + bytes([other]) + whole[place + 1 :])
        assert files.read("key") is None
        path.write_bytes(whole[:place])
        assert files.read("key") is None
    path.write_bytes(whole + b"more")
    assert files.read("key") is None
    path.write_bytes(whole)
    assert files.read("key") == RESULT


def test_the_result_of_another_key_is_none_of_its_own(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path, 2**20)
    files.write("key", RESULT)
    whole = only_file(tmp_path).read_bytes()
    files.write("other", b"")
    for path in tmp_path.iterdir():
        path.write_bytes(whole)
    assert files.read("key") == RESULT
    assert files.read("other") is None


def test_a_small_file_that_unpacks_to_much_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ResultFiles(tmp_path, 2**20)
    files.write("key", bytes(2**20))
    monkeypatch.setattr(result_files, "_MOST_BYTES", 2**19)
    assert files.read("key") is None
    files.write("long", bytes(2**20))
    monkeypatch.setattr(result_files, "_MOST_BYTES", 2**21)
    assert files.read("long") is None
    assert files.read("key") == bytes(2**20)


def test_the_longest_without_use_go_first(tmp_path: Path) -> None:
    size = 1000
    files = ResultFiles(tmp_path, 10 * size)
    for n in range(10):
        files.write(str(n), random.Random(n).randbytes(size))
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    for n in (7, 3):
        assert files.read(str(n)) is not None
    # What a writer left that was killed goes too.
    (tmp_path / "x.result1.part").write_bytes(b"")
    os.utime(tmp_path / "x.result1.part", (0, 0))
    files.trim()
    assert files.num_bytes() <= files.most_bytes
    assert {n for n in range(10) if files.read(str(n)) is not None} >= {3, 7}
    assert not list(tmp_path.glob("*.part"))


def test_many_writers_and_readers_of_one_folder(tmp_path: Path) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        files, rng = ResultFiles(tmp_path, 3000), random.Random(seed)
        for _ in range(60):
            key = rng.randrange(8)
            found = files.read(str(key))
            if found not in (None, random.Random(key).randbytes(500)):
                wrong.append(found)
            files.write(str(key), random.Random(key).randbytes(500))
            if rng.random() < 0.2:
                files.trim()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
