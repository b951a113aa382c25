"""Strategies between processes: exact values, and the elements that pass are the closed forms."""

from __future__ import annotations

import pytest

from doubles.processes import run_job, texts
from hosts.sending import CASES
from meshwise.resharding.cross_mesh.strategies import STRATEGIES


@pytest.mark.slow
def test_arrays_pass_between_processes_by_each_strategy() -> None:
    ended = run_job("hosts.sending", (2, 2, 2), limit_s=180)
    for process in ended:
        assert process.code == 0, texts(ended)
        assert f"passed {len(CASES) * len(STRATEGIES)}" in process.text, texts(ended)
