"""The limit of silence that a user sets."""

from __future__ import annotations

import pytest

from meshwise.errors import ClusterError
from meshwise.runtime.job.beats import SILENT_S
from meshwise.runtime.job.heartbeat import SILENCE, silence_limit_s


def test_the_limit_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SILENCE, raising=False)
    assert silence_limit_s() == SILENT_S
    monkeypatch.setenv(SILENCE, "60")
    assert silence_limit_s() == 60.0


@pytest.mark.parametrize("told", ["", "soon", "-1", "0", "2", "nan", "inf"])
def test_what_is_no_limit_is_refused(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(SILENCE, told)
    with pytest.raises(ClusterError, match=SILENCE):
        silence_limit_s()
