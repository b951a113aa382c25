"""`meshwise diff`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import meshwise as mw
from doubles.golden_plans import golden_plan
from doubles.pipelines import pipeline, with_memory
from meshwise.cli import main
from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.plan import Plan
from meshwise.units import GIB

FOUR = pipeline(4, 16, "2x p3.16xlarge")


@pytest.fixture(scope="module")
def planned() -> mw.Plan:
    return golden_plan("product-priced")


@pytest.fixture(scope="module")
def by_data() -> mw.Plan:
    return golden_plan("product-by-data")


def run(tmp_path: Path, first: Plan, second: Plan, *options: str) -> Any:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, plan in zip(paths, (first, second), strict=True):
        path.write_text(plan.to_json())
    return CliRunner().invoke(main, ["diff", *map(str, paths), *options])


def rows(tmp_path: Path, first: Plan, second: Plan) -> dict[str, dict[str, Any]]:
    """The rows of each section by name."""
    found = run(tmp_path, first, second, "--json")
    assert found.exit_code == 1
    data = json.loads(found.output)
    assert data["equal"] is False
    return {s["title"]: {r["what"]: r for r in s["rows"]} for s in data["sections"]}


def changed_stage(plan: Plan, number: int, **changes: Any) -> Plan:
    stages = list(plan.stages)
    stages[number] = dataclasses.replace(stages[number], **changes)
    return dataclasses.replace(plan, stages=tuple(stages))


def test_equal_plans(tmp_path: Path, planned: mw.Plan) -> None:
    for plan in (FOUR, planned):
        found = run(tmp_path, plan, plan)
        assert (found.exit_code, found.output) == (0, "")
    found = run(tmp_path, FOUR, FOUR, "--json")
    assert found.exit_code == 0
    assert json.loads(found.output)["equal"] is True


def test_one_stage(tmp_path: Path) -> None:
    other = changed_stage(FOUR, 1, remat="none", forward_s=0.009, resident_bytes=2**31)
    found = rows(tmp_path, FOUR, other)
    assert list(found) == ["Stages"]
    assert list(found["Stages"]) == ["1 remat", "1 forward", "1 resident", "1 peak"]
    assert (found["Stages"]["1 forward"]["a"], found["Stages"]["1 forward"]["b"]) == (0.010, 0.009)
    text = run(tmp_path, FOUR, other).output
    assert "-10.0%" in text
    assert "full" in text


def test_what_does_not_fit_is_said_first(tmp_path: Path) -> None:
    small = with_memory(FOUR, *[6 * GIB] * 4)
    text = run(tmp_path, FOUR, small).output
    warning, rest = text.split("\n\n", 1)
    assert "b.json: does not fit: stage 0 needs 6.25 GiB, a device of 2x" in warning
    assert "a.json" not in warning
    assert rest.startswith("Stages\n")
    assert max(map(len, text.splitlines())) <= 100
    data = json.loads(run(tmp_path, FOUR, small, "--json").output)
    assert data["memory"]["a"] == {"fits": True, "too_large": []}
    assert data["memory"]["b"]["too_large"][0]["excess_bytes"] == GIB // 4
    # Of equal plans nothing is said.
    assert run(tmp_path, small, small).output == ""


def test_other_numbers_of_stages(tmp_path: Path) -> None:
    other = pipeline(8, 32, "2x p3.16xlarge", 2, schedule="gpipe")
    found = rows(tmp_path, FOUR, other)
    planned = found["Planned"]
    assert {"micro-batches", "stages", "schedule", "batch", "space"} == planned.keys()
    stages = found["Stages"]
    assert (stages["0 layers"]["a"], stages["0 layers"]["b"]) == ("0-2", "0-1")
    assert (stages["7"]["a"], stages["7"]["b"][:12]) == (None, "layers 14-15")
    layouts = found["Layouts"]
    up = layouts["0/params/block_*/mlp/up/kernel in 0-11"]
    assert up["count"] == 12
    assert up["a"] == "float32[64,256] P(-, (x, y)) x=2 y=2"
    # Not split, so no other layout on another mesh.
    assert "0/params/block_*/norm/scale in 0-11" not in layouts
    text = run(tmp_path, FOUR, other).output
    assert max(map(len, text.splitlines())) <= 100


def test_the_same_name_of_another_cluster(tmp_path: Path) -> None:
    group = FOUR.cluster.groups[0]
    fast = dataclasses.replace(group.host, nic=dataclasses.replace(group.host.nic, latency_s=0.0))
    cluster = ClusterSpec(name=FOUR.cluster.name, groups=(dataclasses.replace(group, host=fast),))
    found = rows(tmp_path, FOUR, dataclasses.replace(FOUR, cluster=cluster))
    assert found["Planned"]["cluster"]["b"] == "other hosts, links or memory"


def test_plans_of_one_mesh(tmp_path: Path, planned: mw.Plan, by_data: mw.Plan) -> None:
    found = rows(tmp_path, planned, by_data)
    assert found["Planned"]["method"]["b"] == "DataParallel()"
    assert found["A step"]["step time"]["a"] == planned.step_time_s
    assert found["A step"]["peak memory"]["b"] == by_data.peak_bytes
    layouts = found["Layouts"]
    assert layouts["1"]["b"] == "float32[256,64] P(x, -) x=4"
    collectives = found["Collectives in a step (count, bytes, seconds)"]
    assert any(name.startswith("all-reduce over x of 4") for name in collectives)
    text = run(tmp_path, planned, by_data).output
    assert max(map(len, text.splitlines())) <= 100


def test_what_no_section_shows_is_named(tmp_path: Path, planned: mw.Plan) -> None:
    found = rows(tmp_path, planned, dataclasses.replace(planned, warnings=("mind the gap",)))
    assert list(found) == ["Also different, see `meshwise explain`"]
    assert "warnings" in found["Also different, see `meshwise explain`"]
    (stage,) = planned.stages
    argument = dataclasses.replace(stage.arguments[0], communication=(("all-gather", 1.0),))
    layer = dataclasses.replace(stage.layers[0], arguments=(argument, *stage.arguments[1:]))
    edited = dataclasses.replace(stage, layers=(layer,))
    found = rows(tmp_path, planned, dataclasses.replace(planned, stages=(edited,)))
    assert "stages[0].layers" in found["Also different, see `meshwise explain`"]


def test_what_only_one_of_the_files_has_is_named(tmp_path: Path, planned: mw.Plan) -> None:
    other = dataclasses.replace(planned, verified="it fits by XLA:GPU", spelling=())
    for first, second in ((planned, other), (other, planned)):
        found = rows(tmp_path, first, second)
        assert list(found["Also different, see `meshwise explain`"]) == ["spelling", "verified"]


def test_trouble(tmp_path: Path, planned: mw.Plan) -> None:
    found = rows(tmp_path, planned, FOUR)
    assert found["Planned"]["schedule"] == {
        "what": "schedule", "count": 1, "a": "one-program", "b": "1f1b"
    }  # fmt: skip
    found = CliRunner().invoke(main, ["diff", str(tmp_path / "a.json"), "missing.json"])
    assert found.exit_code == 2
    assert "missing.json: No such file or directory" in found.output
    found = CliRunner().invoke(main, ["diff", "-", "-"], input="{}")
    assert found.exit_code == 2
    assert "only one of A and B" in found.output
