"""Where caches lie, also for users without a home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshwise.system.user_cache import user_cache


@pytest.mark.parametrize(
    ("asked", "found"), [("/caches", "/caches/meshwise"), ("", "/home/me/.cache/meshwise")]
)
def test_the_users_caches(asked: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", asked)
    monkeypatch.setenv("HOME", "/home/me")
    assert user_cache() == Path(found)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert user_cache() == tmp_path / f"meshwise-of-{os.getuid()}"
