"""Answers of compilers: kept on disk, asked once, refused with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwise.errors import ClusterError
from meshwise.targets import packages
from meshwise.targets.child import CompileAnswer
from meshwise.targets.compiler import AnswerFolder
from meshwise.targets.packages import CompilerPackage, installed_compiler

ANSWER = CompileAnswer(
    argument_bytes=5, output_bytes=3, alias_bytes=2, temporary_bytes=7, text="HLO", seconds=1.5
)


def test_an_answer_on_disk_reads_back(tmp_path: Path) -> None:
    folder = AnswerFolder(tmp_path / "answers")
    assert folder.read("a") is None
    folder.write("a", ANSWER)
    assert folder.read("a") == ANSWER
    assert ANSWER.peak_bytes == 13
    assert [path.name for path in (tmp_path / "answers").iterdir()] == ["a.json.gz"]


@pytest.mark.parametrize("content", [b"", b"torn", None])
def test_what_cannot_be_read_is_as_if_it_were_not_there(
    tmp_path: Path, content: bytes | None
) -> None:
    folder = AnswerFolder(tmp_path)
    folder.write("a", ANSWER)
    path = tmp_path / "a.json.gz"
    path.write_bytes(path.read_bytes()[:-4] if content is None else content)
    assert folder.read("a") is None


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = AnswerFolder(tmp_path / "file" / "answers")
    folder.write("a", ANSWER)
    assert folder.read("a") is None


def test_a_compiler_that_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = CompilerPackage(
        name="no-such-compiler", file="x.so", extra="target-gpu", follows_jax=False
    )
    monkeypatch.setattr(packages, "PACKAGES", {"cuda": missing})
    with pytest.raises(
        ClusterError,
        match=r"no-such-compiler, is not installed: `pip install \"no-such-compiler\"`, or "
        r"`pip install \"meshwise\[target-gpu\]\"`",
    ):
        installed_compiler("cuda")
