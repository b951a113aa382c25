"""Text: order, split, windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwise.errors import MeshwiseError
from meshwise.train.corpus import corpus_of, load_corpus

FILES = [(f"{i}.py", f"text of file {i} ".encode() * 9) for i in range(64)]


def test_the_split_is_by_file_and_ignores_the_others() -> None:
    corpus = corpus_of("x", FILES, seq=8)
    assert 0 < len(corpus.heldout) < len(corpus.train)
    held = [path for path, data in FILES if data in corpus.heldout.tobytes()]
    learnt = [path for path, data in FILES if data in corpus.train.tobytes()]
    assert sorted(held + learnt) == sorted(path for path, _ in FILES)
    fewer = corpus_of("x", [file for file in FILES if file[0] not in learnt[::2]], seq=8)
    assert len(fewer.train) < len(corpus.train)
    assert fewer.heldout.tobytes() == corpus.heldout.tobytes()


def test_one_file_is_split_by_its_end() -> None:
    corpus = corpus_of("x", [("a", bytes(range(1, 101)))], seq=4)
    assert corpus.train.tobytes() == bytes(range(1, 91))
    assert corpus.heldout.tobytes() == bytes(range(91, 101))


def test_too_little_text_is_refused() -> None:
    with pytest.raises(MeshwiseError, match="too little text in x: 18 bytes to learn from and 2 "):
        corpus_of("x", [("a", b"a" * 20)], seq=4)


def test_a_batch_depends_on_the_step_and_the_seed_only() -> None:
    corpus = corpus_of("x", FILES, seq=8)
    one = corpus.batch_at(3, batch=4, seq=8, seed=0)
    again = corpus.batch_at(3, batch=4, seq=8, seed=0)
    np.testing.assert_array_equal(one["x"], again["x"])
    assert not np.array_equal(one["x"], corpus.batch_at(4, batch=4, seq=8, seed=0)["x"])
    assert not np.array_equal(one["x"], corpus.batch_at(3, batch=4, seq=8, seed=1)["x"])


def test_labels_are_the_next_bytes_of_the_text() -> None:
    corpus = corpus_of("x", FILES, seq=8)
    text = corpus.train.tobytes()
    batch = corpus.batch_at(0, batch=16, seq=8, seed=0)
    for x, y in zip(batch["x"], batch["y"], strict=True):
        assert bytes([*x.tolist(), y[-1]]) in text
        np.testing.assert_array_equal(x[1:], y[:-1])


def test_every_byte_can_be_drawn() -> None:
    corpus = corpus_of("x", [("a", bytes(range(1, 101)))], seq=4)
    batch = corpus.batch_at(0, batch=5000, seq=4, seed=0)
    assert set(batch["x"].flat) | set(batch["y"].flat) == set(range(1, 91))


def test_heldout_windows_reach_both_ends() -> None:
    corpus = corpus_of("x", [("a", bytes(range(1, 201)))], seq=4)
    batches = list(corpus.heldout_batches(num_batches=2, batch=3, seq=4))
    assert [b["x"].shape for b in batches] == [(3, 4), (3, 4)]
    assert batches[0]["x"][0, 0] == 181
    assert batches[-1]["y"][-1, -1] == 200


def test_a_folder_is_read_in_order_without_hidden_and_binary_files(tmp_path: Path) -> None:
    for name, data in {
        "b/one.txt": b"B" * 30, "a.txt": b"A" * 30, ".git/x": b"C" * 30, "z.bin": b"\0" * 30,
        "tests/t.txt": b"D" * 30, ".hidden": b"E" * 30, "empty": b"",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    corpus = load_corpus(tmp_path, seq=4)
    assert corpus.num_files == 2
    whole = corpus.train.tobytes() + corpus.heldout.tobytes()
    assert whole == b"A" * 30 + b"\0" + b"B" * 30


def test_the_standard_library_is_there_and_big_enough() -> None:
    corpus = load_corpus(None, seq=128)
    assert len(corpus.train) > 5_000_000
    assert len(corpus.heldout) > 200_000
    assert b"class OrderedDict" in corpus.train.tobytes() + corpus.heldout.tobytes()


def test_no_such_text(tmp_path: Path) -> None:
    with pytest.raises(MeshwiseError, match="is neither a file nor a folder"):
        load_corpus(tmp_path / "none", seq=4)
