"""`meshwise train` and `meshwise plan` say what they search, and where memory comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshwise as mw
from doubles.jit_step import PLAN
from meshwise.cli.search_text import plan_search_text, train_memory_text, train_search_text
from meshwise.train.options import TrainOptions
from meshwise.units import bytes_text


def options(**changes: Any) -> TrainOptions:
    return TrainOptions(out=Path("run"), **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "planning on one mesh; --stages auto searches pipeline stages, too"),
        ({"method": "zero3"}, "planning on one mesh"),
        ({"mesh": (2, 4)}, "planning on one mesh"),
        ({"stages": "auto"}, "planning pipelines, stages: auto"),
        ({"plan": PLAN}, "checking the plan of --plan; nothing is searched"),
    ],
)
def test_a_run_says_what_it_searches(changes: Any, text: str) -> None:
    assert train_search_text(options(**changes)) == text


def test_both_commands_name_both_amounts_of_memory() -> None:
    here = bytes_text(mw.Cluster.local().device.memory_bytes)
    trained = train_memory_text(options())
    planned = plan_search_text(mw.Cluster.virtual("8 cpu"), None, None)
    assert trained.startswith(f"memory: {here} a device")
    assert f"takes this machine's, {here} a device" in planned
    assert "any number of stages, 2 GiB a device of an assumed machine of 16 GiB" in planned
    assert "assumes a machine of 16 GiB" in trained


def test_memory_that_is_asked_for_or_of_a_data_sheet_is_told_as_it_is() -> None:
    assert train_memory_text(options(memory_bytes=2**30)) == ""
    assert train_memory_text(options(cluster=mw.Cluster.virtual("8 cpu"))) == ""
    h100 = mw.Cluster.virtual("1x dgx-h100")
    assert plan_search_text(h100, 2, None) == "planning for 1x dgx-h100, stages: 2, 72 GiB a device"
    assert plan_search_text(h100, 2, 2**30).endswith("1 GiB a device (--memory)")
