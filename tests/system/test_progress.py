"""Lines of progress: in a program's log, and where a command shows them."""

from __future__ import annotations

import logging
import threading
import time

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from doubles.perceptron import perceptron
from meshwise.cluster.cpu import cpu_cluster
from meshwise.system.progress import say, shown, told_if_slow


def test_only_a_block_that_takes_long_shows_lines() -> None:
    at_once: list[str] = []
    with shown(at_once.append, patience_s=0.0):
        say("first")
    say("after the block")
    assert len(at_once) == 1
    assert at_once[0].endswith("s  first")
    soon: list[str] = []
    with shown(soon.append, patience_s=3600.0):
        say("first")
    assert soon == []
    assert not logging.getLogger("meshwise").handlers


def test_what_is_done_when_the_patience_ends_is_shown_then() -> None:
    lines: list[str] = []
    is_shown = threading.Event()

    def show(line: str) -> None:
        lines.append(line)
        is_shown.set()

    with shown(show, patience_s=0.2):
        say("first")
        say("second")
        assert is_shown.wait(60)
        say("third")
    assert [line.split("s  ")[1] for line in lines] == ["second", "third"]


def test_each_line_is_shown_once_and_a_warning_at_once(caplog: pytest.LogCaptureFixture) -> None:
    at_once: list[str] = []
    with caplog.at_level(logging.INFO), shown(at_once.append, patience_s=3600.0):
        say("first")
        logging.getLogger("meshwise").warning("second")
    assert [line.split("s  ")[1] for line in at_once] == ["second"]
    assert caplog.records == []
    assert logging.getLogger("meshwise").propagate


def test_parallelize_logs_what_it_plans(caplog: pytest.LogCaptureFixture) -> None:
    step, state, batch = perceptron((8, 16, 8), 8)
    with caplog.at_level(logging.INFO, logger="meshwise"):
        mw.parallelize(step, cluster=mw.Cluster.virtual("1x p3.8xlarge")).plan(state, batch)
        method = mw.Auto(stages=2, schedule="1f1b")
        cluster = mw.Cluster.virtual("2x p3.2xlarge")
        mw.parallelize(step, method=method, cluster=cluster, num_microbatches=2).plan(state, batch)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:6] == [
        "tracing",
        "B=1: on the meshes 4, 2x2",
        "mesh 4 (1 of 2): choices and costs",
        "mesh 2x2 (2 of 2): choices and costs",
        "mesh 4 (1 of 2): searching",
        "mesh 2x2 (2 of 2): searching",
    ]
    assert lines[6].startswith("counting and verifying the plan on the mesh ")
    assert lines[7] == "tracing"


def test_a_call_logs_that_it_compiles(caplog: pytest.LogCaptureFixture) -> None:
    step, state, batch = perceptron((8, 16, 8), 8)
    args = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (state, batch))
    parallel = mw.parallelize(step, cluster=cpu_cluster(2))
    with caplog.at_level(logging.INFO, logger="meshwise"):
        state, _ = parallel(*args)
        lines = [record.getMessage() for record in caplog.records]
        assert lines[-1] == "compiling step"
        parallel(state, args[1])
    assert len(caplog.records) == len(lines)


def test_compiling_and_the_first_state_are_told(caplog: pytest.LogCaptureFixture) -> None:
    fun, state, batch = perceptron((8, 16, 8), 8)
    step = mw.parallelize(fun, method=mw.DataParallel())
    step.plan(state, batch)
    with caplog.at_level(logging.INFO, logger="meshwise"):
        step.init(lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state), batch)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["compiling step", "making the first state"]


def test_what_takes_long_says_once_how_progress_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    with told_if_slow("planning step", patience_s=0.0):
        while not caplog.records:
            time.sleep(0.001)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "planning step has taken 0 s so far; logging.basicConfig(level=logging.INFO) shows what it "
        "tries"
    )


def test_what_is_quick_or_seen_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with told_if_slow("planning step", patience_s=3600.0):
        assert threading.active_count() > 1
    with shown(lambda _: None), told_if_slow("planning step", patience_s=0.0):
        pass
    assert caplog.records == []
