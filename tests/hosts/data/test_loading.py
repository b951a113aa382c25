"""Jobs that train on batches of which each process reads its rows: the oracle is one device."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import meshwise as mw
from doubles.examples import ROWS, Counting, batch_spec, new_state, order, train_step, whole_batch
from doubles.processes import run_job, texts

SEED = 7


def answers(devices: tuple[int, ...], *asked: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What each process found, for each thing that was asked."""
    ended = run_job("hosts.data.loading", devices, [json.dumps(each) for each in asked])
    assert [process.code for process in ended] == [0] * len(devices), texts(ended)
    found = []
    for process in ended:
        lines = (x for x in process.text.splitlines() if x.startswith("found "))
        found.append([json.loads(line.removeprefix("found ")) for line in lines])
    return [list(each) for each in zip(*found, strict=True)]


def assert_refused(found: list[dict[str, Any]], *messages: str) -> None:
    for answer in found:
        for message in messages:
            assert message in answer["error"]


@pytest.mark.slow
def test_one_mesh_over_two_processes() -> None:
    different, loaded, whole, _, dims, unequal, absent = answers(
        (2, 2),
        {"do": "different_rows", "kind": "mesh"},
        {"do": "load", "kind": "mesh", "count": 3},
        {"do": "whole_examples", "kind": "mesh"},
        {"do": "own_rows", "kind": "mesh"},
        {"do": "other_dims", "kind": "mesh"},
        {"do": "unequal_parts", "kind": "mesh"},
        {"do": "another_loader", "kind": "mesh"},
    )
    assert [each["rows"] for each in loaded] == [
        {"x": [[0, 4]], "y": [[0, 4]]},
        {"x": [[4, 8]], "y": [[4, 8]]},
    ]
    assert all(each["kinds"] == ["ArrayImpl"] for each in whole)
    assert_refused(dims, "does not fit the tree of the rows, PyTreeDef({'x': *})")
    assert all("that dim 2 of rows is the batch" in each["dim"] for each in dims)
    assert_refused(different, "processes pass different values of argument 1 (batch)['x']")
    assert_refused(different, "in process 0", "in process 1", "step.loader", "mw.host_batch")
    assert all(each["seconds"] < 30 for each in different)
    assert_refused(unequal, "float64[2, 3]", "in process 0, float64[3, 3]")
    assert_refused(absent, "of the batch for its devices, and has rows none")
    # One process goes on in the middle of an epoch.
    state = loaded[0]["state"]
    assert state == loaded[1]["state"]
    step = mw.parallelize(train_step, method=mw.DataParallel(), cluster=mw.Cluster.local())
    loader = step.loader(Counting(), new_state(), batch_spec(), seed=SEED, start=state)
    expected = whole_batch(order(SEED, 5 * ROWS)[3 * ROWS : 4 * ROWS])
    np.testing.assert_array_equal(next(loader)["x"], expected["x"])


def test_a_pipeline_over_two_processes() -> None:
    different, loaded, whole, _ = answers(
        (1, 1),
        {"do": "different_rows", "kind": "pipeline"},
        {"do": "load", "kind": "pipeline", "first": 2},
        {"do": "whole_examples", "kind": "pipeline"},
        {"do": "own_rows", "kind": "pipeline"},
    )
    # The first stage reads other leaves than the last.
    assert [each["rows"] for each in loaded] == [
        {"x": [[0, 8]], "y": []},
        {"x": [], "y": [[0, 8]]},
    ]
    assert all(each["kinds"] == ["HostRows", "ndarray"] for each in whole)
    assert_refused(different, "processes pass different values of argument 1 (batch)['x']")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "kind"), [((1, 1, 1, 1), "mesh"), ((2, 2), "pipeline"), ((1, 1, 1, 1), "pipeline")]
)
def test_other_numbers_of_processes(devices: tuple[int, ...], kind: str) -> None:
    asked = [{"do": "load", "kind": kind, "first": 1}, {"do": "whole_examples", "kind": kind}]
    if ROWS % len(devices) == 0:
        asked.append({"do": "own_rows", "kind": kind})
    answers(devices, *asked)
