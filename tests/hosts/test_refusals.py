"""Processes that do not agree get typed errors, each of them, and can go on."""

from __future__ import annotations

import pytest

import meshwise as mw
from doubles.processes import run_job, texts
from hosts.refusals import CASES
from meshwise.errors import ClusterError


def test_processes_that_do_not_agree_are_told() -> None:
    ended = run_job("hosts.refusals", (2, 2), limit_s=150)
    for process in ended:
        assert process.code == 0, texts(ended)
        for case in CASES:
            assert f"passed {case.__name__}\n" in process.text, texts(ended)
        assert "passed all" in process.text


def test_without_a_job_there_is_no_distributed_cluster() -> None:
    with pytest.raises(ClusterError, match=r"call jax\.distributed\.initialize\(\) before"):
        mw.Cluster.distributed()
