"""A child process that answers requests, whatever else happens around it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from meshwise.system.child_process import ChildProcess

_ANSWERS = "from meshwise.system.child_process import requests\n"
_LOUD = f"""{_ANSWERS}
import os
for value, answer in requests():
    print("what users' code prints", flush=True)
    os.system("echo and what it starts")
    answer(value)
"""
_LOUD_BEFORE = f"""{_ANSWERS}
print("what is printed before", flush=True)
for value, answer in requests():
    answer(value)
"""


def test_answers_of_a_process_that_prints() -> None:
    with ChildProcess(_LOUD) as child:
        for value in ("one", list(range(100_000))):
            child.send(value)
            assert child.receive() == value
    assert child.process.returncode is not None


def test_what_is_no_message_ends_the_talk() -> None:
    with ChildProcess(_LOUD_BEFORE) as child, pytest.raises(EOFError):
        child.receive()


def test_what_a_process_printed_before_it_ended_is_known() -> None:
    script = "import os, sys; print('x' * 5000 + 'the reason', file=sys.stderr); os.abort()"
    with ChildProcess(script) as child:
        with pytest.raises(EOFError):
            child.receive()
        printed = child.last_printed()
    assert printed.endswith("xthe reason")
    assert len(printed) <= 2000


def test_after_what_cannot_be_sent_all_else_can() -> None:
    with ChildProcess(_LOUD) as child:
        with pytest.raises(pickle.PicklingError):
            child.send(lambda: None)
        child.send(1)
        assert child.receive() == 1


def test_modules_of_the_working_directory_are_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    # As in an interactive session.
    monkeypatch.syspath_prepend("")
    with ChildProcess(_LOUD) as child:
        child.send(1)
        assert child.receive() == 1
