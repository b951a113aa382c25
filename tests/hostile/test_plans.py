"""Plan files of others: refused with the file and the field, or read as they are."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostile.bounds import bounded
from hostile.mutations import damaged, documents, json_of, raw
from hostile.searches import COUNTS, check_error, search
from hostile.valid import PLAN_FILES, PLANS
from meshwise.errors import PlanError
from meshwise.plan.files.json_form import VERSION
from meshwise.plan.plan import Plan
from meshwise.report.difference import difference_text
from meshwise.report.html.page import plan_page
from meshwise.report.plan_diff import plan_differences
from meshwise.report.plan_file import plan_from_file
from meshwise.report.plan_memory import simulated_memory
from meshwise.report.simulation_text import simulation_text
from meshwise.simulate.plan import simulate_plan
from meshwise.simulate.trace import chrome_trace

PIPELINE = PLANS[-1]
ONE_MESH = PLANS[0]


def check_plan(path: Path) -> Callable[[bytes], None]:
    """Return the check of a file, which is written there."""
    other = Plan.from_json(PLAN_FILES[0].decode())

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with bounded():
            try:
                plan = plan_from_file(path)
            except PlanError as error:
                return check_error(error, path)
            assert_says(plan, data)
            plan.explain().encode()
            plan_page(plan).encode()
            difference_text(plan_differences(plan, other), ("a", "b")).encode()
            try:
                found = simulate_plan(plan)
            except PlanError:
                return None
            simulation_text(plan, found).encode()
            chrome_trace(found.timeline)
            simulated_memory(plan, found)

    return check


def assert_says(plan: Plan, data: bytes) -> None:
    """A plan that was read says what its file says."""
    # 1 and 1.0 are equal.
    said = json.loads(data, parse_int=float)
    written = json.loads(plan.to_json(), parse_int=float)
    assert Plan.from_json(plan.to_json()) == plan
    if said["format"] == "meshwise-plan" and said["version"] == VERSION:
        # Left out, or left out where they are empty.
        for name in ("peak_bytes", "device_flop", "verified", "transfers"):
            said.pop(name, None)
            written.pop(name, None)
        for name in set(said) - {"stages", "decisions", "cluster"}:
            assert written[name] == said[name], name
        assert len(written["stages"]) == len(said["stages"])


@pytest.mark.parametrize("count", COUNTS)
def test_plans_with_other_values(count: int, tmp_path: Path) -> None:
    search(documents(PLANS, json_of), check_plan(tmp_path / "plan.json"), count)


@pytest.mark.parametrize("count", COUNTS)
def test_plans_with_other_bytes(count: int, tmp_path: Path) -> None:
    search(damaged(PLAN_FILES), check_plan(tmp_path / "plan.json"), count)


def changed(document: dict[str, Any], where: tuple[str | int, ...], value: Any) -> bytes:
    """Return the file of a plan in which one value is another."""
    document = copy.deepcopy(document)
    *way, last = where
    place: Any = document
    for key in way:
        place = place[key]
    place[last] = value
    return json_of(document)


AXIS = PIPELINE["stages"][0]["mesh"]["axes"][0]
LATE = {"seconds": 1e6, "held_bytes": 1, "waiting": 1}
# Found by search or by thought: each crashed, hung, or took gigabytes.
CASES: dict[str, tuple[bytes, str]] = {
    "micro-batches without end": (
        json_of(PIPELINE | {"batch_size": 10**9, "num_microbatches": 10**9}),
        "at most 1048576 tasks can be planned for",
    ),
    "micro-batches of no rows": (
        json_of(PIPELINE | {"batch_size": 0, "num_microbatches": 10**9}),
        "at most 1048576 tasks can be planned for",
    ),
    "a mesh of more devices than digits": (
        changed(PIPELINE, ("stages", 0, "mesh", "axes"), [AXIS | {"size": 10**18}] * 2000),
        "at most 10 axes of at most 131072 devices",
    ),
    "an earlier mesh of more devices than digits": (
        changed(PLANS[3], ("stages", 0, "mesh", "axes"), [AXIS | {"size": 10**18}] * 400),
        "field 'stages[0].submesh[1]': expected a number of less than 64 bits, got a number of",
    ),
    "a whole number that no float holds": (
        changed(PIPELINE, ("collectives", 0, "num_bytes"), 10**400),
        "expected a number of less than 64 bits",
    ),
    "an axis often enough for a number that no float holds": (
        changed(PIPELINE, ("collectives", 0, "axes"), PIPELINE["collectives"][0]["axes"] * 2000),
        "an axis stands twice",
    ),
    "no collective": (
        changed(PIPELINE, ("collectives", 0, "kind"), "all-lose"),
        "expected one of 'all-reduce'",
    ),
    "a group of more digits than Python reads": (
        changed(ONE_MESH, ("decisions", 0, "outputs", 0), "R R group " + "7" * 5000),
        "expected a layout",
    ),
    "commands to the terminal": (
        json_of(PIPELINE | {"model": "\x1b]0;owned\x07"}),
        "field 'model': expected a text without control characters, got '\\x1b]0;owned\\x07'",
    ),
    "half a character": (
        json_of(PIPELINE | {"model": "\ud800"}),
        "field 'model': expected a text without control characters",
    ),
    "a key that stands twice": (
        json_of(PIPELINE | {"\x02model": "another"}),
        "a plan must be JSON: key 'model' stands twice",
    ),
    "an unknown key without end": (json_of(PIPELINE | {"x" * 10**6: 1}), "xxxx' is unknown"),
    "a number of thousands of digits": (
        json_of(PIPELINE | {"batch_size": raw("9" * 5000)}),
        "a plan must be JSON: Exceeds the limit",
    ),
    "a layout without end": (
        changed(PIPELINE, ("stages", 0, "layers", 0, "arguments", 0, "layout"), "R " * 10**5 + "R"),
        "field 'stages[0].layers[0].arguments[0].layout': layout R R",
    ),
    "a delay for each of many meshes": (json_of(PIPELINE | {"delays": [0] * 10**5}), "delay"),
    "seconds whose sums no float holds": (
        changed(ONE_MESH, ("stages", 0, "backward_gather_s"), 1e308),
        "field 'stages[0].backward_gather_s': expected a number of at most 1e+30, got 1e+308",
    ),
    "a link that carries nothing": (
        changed(PIPELINE, ("stages", 0, "mesh", "axes", 0, "link_bytes_per_s"), 0),
        "field 'stages[0].mesh.axes[0].link_bytes_per_s': expected a number of at least 1e-30",
    ),
    "gradients of weights that take longer than all gradients": (
        changed(PLANS[4], ("stages", 0, "weights"), LATE),
        "field 'stages[0].weights.seconds': 1e+06 s, but the whole backward pass takes",
    ),
    "nested without end": (b"[" * 10**6, "nested too deeply"),
    "lists without end": (
        b'{"format": "meshwise-plan", "version": 5, "x": [' + b"[]," * 2**24 + b"[]]}",
        "more than 32 MiB, so it is something else",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_plans_that_are_refused(name: str, tmp_path: Path) -> None:
    data, message = CASES[name]
    path = tmp_path / "plan.json"
    path.write_bytes(data)
    with bounded(), pytest.raises(PlanError) as caught:
        plan_from_file(path)
    check_error(caught.value, path)
    assert message in str(caught.value)


def test_texts_of_a_plan_are_no_markup(tmp_path: Path) -> None:
    text = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    document = copy.deepcopy(PIPELINE) | {"model": text, "warnings": [text], "method": text}
    document["cluster"]["name"] = text
    for stage in document["stages"]:
        for argument in stage["layers"][0]["arguments"]:
            argument["name"] = text
    page = plan_page(Plan.from_json(json_of(document).decode()))
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "<img" not in page
