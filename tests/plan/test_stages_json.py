"""The JSON form of pipelines: exact both ways, and mistakes in it are told by place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doubles.pipelines import pipeline
from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.description.cluster_file import cluster_fields
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.graph.layout import layout_text
from meshwise.plan.plan import Plan
from meshwise.plan.stage import WeightGradients
from meshwise.resharding.between import Passing

PLAN = pipeline()
UNKNOWN: dict[str, Any] = {"host_bytes_per_s": 0.0, "host_memory_bytes": 0}


def between_hosts(plan: Plan) -> Plan:
    """The plan, as if its stages were on other hosts."""
    first, *rest = plan.stages
    first = replace(first, backward_passing=Passing(sent=1.0, received=0.5))
    return replace(plan, transfers="broadcast", stages=(first, *rest))


GOLDEN = Path(__file__).parents[1] / "golden" / "plans"


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        pipeline(1, 1),
        pipeline(4, 16, "2x p4d.24xlarge", schedule="gpipe", model='<b>"&'),
        pipeline(2, 4, cpu_cluster(4)),
        between_hosts(pipeline(2, 4, "2x p4d.24xlarge")),
    ],
    ids=["two", "one", "hosts", "cpu", "between hosts"],
)
def test_reads_back_equal_and_writes_equal_bytes(plan: Plan) -> None:
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    assert "Infinity" not in text


@pytest.mark.parametrize(
    "cluster",
    [
        *(ClusterSpec.virtual(name) for name in sorted(HOSTS)),
        ClusterSpec.virtual("v5e-16"),
        ClusterSpec.virtual("2x p3.16xlarge + 3x dgx-a100"),
        ClusterSpec.virtual("2x p3.16xlarge + 3x dgx-a100").slowest(),
    ],
    ids=lambda cluster: cluster.name,
)
def test_a_cluster_reads_back_equal(cluster: ClusterSpec) -> None:
    name, groups = cluster_fields(json.loads(json.dumps(cluster.table())), "x")
    assert ClusterSpec(name=name, groups=groups) == cluster


def golden() -> dict[str, Any]:
    """A file that version 3 of pipelines wrote."""
    return json.loads((GOLDEN / "pipeline-version-3.json").read_text())


def of_version_5() -> dict[str, Any]:
    """`PLAN` as version 5 wrote it, whose `step_time_s` was that of the formula."""
    data = json.loads(PLAN.to_json()) | {"version": 5, "simulated_s": PLAN.step_time_s}
    return data | {"step_time_s": data.pop("formula_s")}


def test_version_5_said_the_time_of_the_formula() -> None:
    assert PLAN.step_time_s != PLAN.formula_s
    assert Plan.from_json(json.dumps(of_version_5())) == PLAN


def test_version_4_counted_nothing_that_waits() -> None:
    data = of_version_5() | {"version": 4}
    for stage in data["stages"]:
        assert stage.pop("waiting_bytes") == 0
    assert Plan.from_json(json.dumps(data)) == PLAN


def without_host_memory(cluster: ClusterSpec | None) -> ClusterSpec:
    """The cluster as files describe it that say nothing of the memory of hosts."""
    assert cluster is not None
    groups = [
        replace(g, host=replace(g.host, device=replace(g.host.device, **UNKNOWN)))
        for g in cluster.groups
    ]
    return replace(cluster, groups=tuple(groups))


def test_version_3_of_pipelines_reads() -> None:
    data = golden()
    read = Plan.from_json(json.dumps(data))
    assert read.gap == pytest.approx(1 - data["bound_s"] / data["step_time_s"])
    assert [(s.first_layer, s.last_layer) for s in read.stages] == [(0, 1), (2, 3)]
    assert [s.weights and s.weights.waiting for s in read.stages] == [0, 1]
    first = read.stages[0].layers[0].arguments[0]
    assert [first.name, list(first.shape), layout_text(first.layout)] == (
        data["stages"][0]["layers"][0]["inputs"][0]
    )
    assert read.cluster == without_host_memory(PLAN.cluster)
    assert (read.schedule, read.cuts) == ("zero-bubble-h1", ((0, 2), (3, 3), (4, 7), (8, 9)))
    assert Plan.from_json(read.to_json()) == read


def test_version_2_splits_no_backward_pass() -> None:
    data = golden() | {"version": 2, "schedule": "1f1b"}
    del data["delays"]
    for stage in data["stages"]:
        del stage["weights"]
    read = Plan.from_json(json.dumps(data))
    assert [stage.weights for stage in read.stages] == [None, None]
    assert read.delays == ()


def test_version_1_has_neither_decisions_nor_gathers() -> None:
    data = golden() | {"version": 1, "schedule": "1f1b"}
    for name in ("delays", "cuts", "decisions"):
        del data[name]
    for stage in data["stages"]:
        for name in ("weights", "forward_gather_s", "backward_gather_s"):
            del stage[name]
        for layer in stage["layers"]:
            del layer["decision"]
    read = Plan.from_json(json.dumps(data))
    assert read.cuts == read.decisions == ()
    assert all(layer.decision is None for stage in read.stages for layer in stage.layers)
    assert [stage.gather_s for stage in read.stages] == [0.0, 0.0]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("key", "value"), [("stages", 3), ("stages", [3]), ("stages", [{"layers": [3]}]), ("tried", {})]
)
def test_what_is_wrong_in_an_older_file_is_said(version: int, key: str, value: Any) -> None:
    with pytest.raises(PlanError, match="field '"):
        Plan.from_json(json.dumps(golden() | {"version": version, key: value}))


def test_gradients_of_weights_are_read_back() -> None:
    late = WeightGradients(seconds=0.5, held_bytes=7, waiting=2)
    stages = (PLAN.stages[0], replace(PLAN.stages[1], backward_s=1.0, weights=late))
    plan = replace(PLAN, stages=stages)
    read = Plan.from_json(plan.to_json())
    assert read == plan
    assert read.stages[1].peak_bytes == PLAN.stages[1].peak_bytes + 14


Edit = Callable[[dict[str, Any]], Any]


def put(*path: Any, value: Any = ...) -> Edit:
    """An edit that sets what a path leads to, or deletes it."""

    def edit(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        if value is ...:
            del data[path[-1]]
        else:
            data[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (put("format", value="x"), "the field 'format' must be 'meshwise-plan' or"),
        (put("version", value=9), "this program reads version 2, 3, 4, 5 and 6, got 9"),
        (put("version", value=True), "this program reads version 2, 3, 4, 5 and 6, got True"),
        (put("schedule"), "field 'schedule' is missing"),
        (put("speed", value=1), "field 'speed' is unknown"),
        (put("schedule", value="2f2b"), "field 'schedule': no schedule is named '2f2b'; known are"),
        (put("delays", value=[1]), "'schedule': schedule 1f1b: one delay of at least 0 is needed"),
        (put("delays", value=[0, -1]), "'delays[1]': expected a whole number, zero or more"),
        (put("hides_transfers", value=1), "'hides_transfers': expected true or false, got 1"),
        (put("num_microbatches", value=5), "'num_microbatches': 5 does not divide the batch of 32"),
        (put("step_time_s", value=None), "'step_time_s': expected a finite number, got None"),
        (put("step_time_s", value=10**400), "'step_time_s': expected a finite number, got 1000"),
        (put("stages", value=[]), "field 'stages': a plan needs at least one stage"),
        (put("stages", 1, "remat", value="some"), "one of 'none', 'selective', 'full', got 'some'"),
        (put("stages", 1, "forward_s", value=-1), "stages[1].forward_s': expected a number, zero"),
        (put("stages", 0, "layers", 0), "layers': the numbers of the layers must go on from 0"),
        (put("stages", 0, "layers", 0, "equal_to", value=2), "equal_to': 2 comes after layer 0"),
        (put("stages", 1, "submesh", value=[1, 1]), "'stages[1].mesh': 2 devices, but 'submesh'"),
        (put("stages", 1, "submesh", value=[2]), "submesh': expected a list of two, got [2]"),
        (put("stages", 1, "first_device", value=3), "on are not in cluster '1x p3.8xlarge' of 1"),
        (put("stages", 1, "first_device", value=1), "device 1 of host 0 belongs to stage 0 too"),
        (
            put("stages", 0, "layers", 1, "arguments", 1, "layout", value="S0 S2"),
            "arguments[1].layout': layout S0 S2 does not fit 0/params/block_1/mlp/up/kernel of",
        ),
        (put("stages", 0, "layers", 1, "arguments", 1, "layout", value="Q"), "expected a layout"),
        (put("stages", 0, "layers", 1, "arguments", 1, value=["a"]), "expected an object"),
        (put("stages", 0, "weights", value={}), "'stages[0].weights.seconds' is missing"),
        (put("cluster", "hosts", 0, "count", value=0), "'cluster': hosts[0]: 'count' must be a"),
        (put("cluster", value="v5e"), "field 'cluster' must be a table, got 'v5e'"),
        (put("tried", 0, value=[1]), "'tried[0]': expected a list of two, got [1]"),
        (put("cuts", value=[[0, 3]]), "field 'cuts': 1 for 6 layers"),
        (
            put("cuts", value=[[0, 3], [4, 5], [7, 8], [9, 9], [10, 10], [11, 11]]),
            "field 'cuts[2]': operators 7 to 8, but the next one is 6",
        ),
        (put("stages", 1, "layers", 0, "decision", value=1), "decision': there is no decision 1"),
        (put("decisions", value=[{}]), "'decisions[0].inputs' is missing"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_place(edit: Edit, message: str) -> None:
    data = json.loads(PLAN.to_json())
    edit(data)
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a plan must be JSON: "),
        ("[" * 100_000, "a plan must be JSON: nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "a plan must be JSON: "),
        ("[]", "not a plan: the field 'format'"),
        ('{"of": {}, "plan": {}}', "earlier versions of `meshwise train` wrote such a file"),
    ],
    ids=["half", "deep", "digits", "list", "of an earlier run"],
)
def test_what_is_no_plan(text: str, message: str) -> None:
    for read in (Plan.from_json, Plan.from_json):
        with pytest.raises(PlanError, match=message):
            read(text)
