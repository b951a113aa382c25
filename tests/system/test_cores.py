"""How many cores a process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwise.system.cores import schedulable_cores, usable_cores

_CORES = schedulable_cores()


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", _CORES),
        ("100000 100000\n", 1),
        ("1000 100000\n", 1),
        (f"{_CORES * 100000 - 50000} 100000\n", _CORES),
        ("9900000 100000\n", min(_CORES, 99)),
        ("", _CORES),
        ("nonsense", _CORES),
    ],
)
def test_a_container_limits_cores(tmp_path: Path, text: str, cores: int) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert usable_cores(limit) == cores


def test_without_a_container(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none") == _CORES >= 1
