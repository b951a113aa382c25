"""A process leaves its job: the others end with its text, or go on where nothing is wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from doubles.processes import TESTS

LIMIT_S = 100


def job(how: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    launcher = [sys.executable, "-m", "meshwise", "launch", "--hosts", "2"]
    return subprocess.run(
        [*launcher, "-m", "hosts.leaving", how],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_an_exception_is_told_before_threads_are_waited_for() -> None:
    done = job("with a thread")
    assert done.returncode == 1, done.stderr
    text = "process 1 failed: ValueError: what a user did wrong"
    assert f"[launch] cause: {text}" in done.stderr
    assert f"[host 0] meshwise: {text}; process 0 was at the end, waiting for" in done.stderr


@pytest.mark.slow
def test_the_exit_code_of_wrong_use_is_kept() -> None:
    done = job("wrong use")
    assert done.returncode == 2, done.stderr
    assert "[launch] cause: process 1 ended with exit code 2" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("how", "count"), [("after an old error", 2), ("early", 1)])
def test_where_nothing_is_wrong_nothing_is_said(how: str, count: int) -> None:
    done = job(how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ended well") == count
    assert "meshwise:" not in done.stderr
