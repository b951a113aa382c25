"""The JSON form of pipelines: exact both ways, and mistakes in it are told by place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from doubles.pipelines import pipeline
from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.read import cluster_fields
from meshwise.cluster.spec import Cluster
from meshwise.cluster.write import cluster_table
from meshwise.errors import PlanError
from meshwise.inter.pipeline_plan import PipelinePlan, WeightGradients
from meshwise.plan.plan import Plan

PLAN = pipeline()


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        pipeline(1, 1),
        pipeline(4, 16, "2x p4d.24xlarge", schedule="gpipe", model='<b>"&'),
        pipeline(2, 4, cpu_cluster(4)),
    ],
    ids=["two", "one", "hosts", "cpu"],
)
def test_reads_back_equal_and_writes_equal_bytes(plan: PipelinePlan) -> None:
    text = plan.to_json()
    assert PipelinePlan.from_json(text) == plan
    assert PipelinePlan.from_json(text).to_json() == text
    assert "Infinity" not in text


@pytest.mark.parametrize(
    "cluster",
    [
        *(Cluster.virtual(name) for name in sorted(HOSTS)),
        Cluster.virtual("v5e-16"),
        Cluster.virtual("2x p3.16xlarge + 3x dgx-a100"),
        Cluster.virtual("2x p3.16xlarge + 3x dgx-a100").slowest(),
    ],
    ids=lambda cluster: cluster.name,
)
def test_a_cluster_reads_back_equal(cluster: Cluster) -> None:
    name, groups = cluster_fields(json.loads(json.dumps(cluster_table(cluster))), "x")
    assert Cluster(name=name, groups=groups) == cluster


def test_version_2_splits_no_backward_pass() -> None:
    data = json.loads(PLAN.to_json()) | {"version": 2}
    assert data.pop("delays") == []
    for stage in data["stages"]:
        assert stage.pop("weights") is None
    assert PipelinePlan.from_json(json.dumps(data)) == PLAN


def test_gradients_of_weights_are_read_back() -> None:
    late = WeightGradients(seconds=0.5, held_bytes=7, waiting=2)
    stages = (PLAN.stages[0], replace(PLAN.stages[1], weights=late))
    plan = replace(PLAN, stages=stages)
    read = PipelinePlan.from_json(plan.to_json())
    assert read == plan
    assert read.stages[1].peak_bytes == PLAN.stages[1].peak_bytes + 14


def test_version_1_has_neither_decisions_nor_gathers() -> None:
    data = json.loads(PLAN.to_json()) | {"version": 1}
    assert data.pop("delays") == []
    for stage in data["stages"]:
        assert stage.pop("weights") is None
        for name in ("forward_gather_s", "backward_gather_s"):
            assert stage.pop(name) == 0.0
        for layer in stage["layers"]:
            assert layer.pop("decision") is None
    assert data.pop("cuts") == data.pop("decisions") == []
    assert PipelinePlan.from_json(json.dumps(data)) == PLAN


def test_a_plan_of_one_mesh_is_another_format() -> None:
    with pytest.raises(PlanError, match="'format' must be 'meshwise-plan'"):
        Plan.from_json(PLAN.to_json())


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
        (put("format", value="x"), "the field 'format' must be 'meshwise-pipeline'"),
        (put("version", value=9), "field 'version': this program reads version 1, 2 and 3, got 9"),
        (put("version", value=True), "this program reads version 1, 2 and 3, got True"),
        (put("schedule"), "field 'schedule' is missing"),
        (put("speed", value=1), "field 'speed' is unknown"),
        (put("schedule", value="2f2b"), "field 'schedule': no schedule is named '2f2b'; known are"),
        (put("delays", value=[1]), "'schedule': schedule 1f1b: one delay of at least 0 is needed"),
        (put("delays", value=[0, -1]), "'delays[1]': expected a whole number, zero or more"),
        (put("hides_transfers", value=1), "'hides_transfers': expected true or false, got 1"),
        (put("num_microbatches", value=5), "'num_microbatches': 5 does not divide the batch of 32"),
        (put("step_time_s", value=None), "'step_time_s': expected a finite number, got None"),
        (put("step_time_s", value=10**400), "'step_time_s': expected a finite number, got 1000"),
        (put("stages", value=[]), "field 'stages': a pipeline needs at least one stage"),
        (put("stages", 1, "remat", value="some"), "one of 'none', 'selective', 'full', got 'some'"),
        (put("stages", 1, "forward_s", value=-1), "stages[1].forward_s': expected a number, zero"),
        (put("stages", 1, "first_layer", value=4), "layers 4 to 5, but the next layer is 3"),
        (put("stages", 0, "layers", 0), "'stages[0].layers': the numbers of the layers must be 0"),
        (put("stages", 0, "layers", 0, "equal_to", value=2), "equal_to': 2 comes after layer 0"),
        (put("stages", 1, "submesh", value=[1, 1]), "'stages[1].mesh': 2 devices, but 'submesh'"),
        (put("stages", 1, "submesh", value=[2]), "submesh': expected a list of two, got [2]"),
        (put("stages", 1, "first_device", value=3), "on are not in cluster '1x p3.8xlarge' of 1"),
        (put("stages", 1, "first_device", value=1), "device 1 of host 0 belongs to stage 0 too"),
        (
            put("stages", 0, "layers", 1, "inputs", 1, 2, value="S0 S2"),
            "layers[1].inputs[1]': layout S0 S2 does not fit 0/params/block_1/mlp/up/kernel of",
        ),
        (put("stages", 0, "layers", 1, "inputs", 1, 2, value="Q"), "expected a layout, as 'S0 R'"),
        (put("stages", 0, "layers", 1, "inputs", 1, value=["a"]), "a name, a shape and a layout"),
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
        PipelinePlan.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a plan must be JSON: "),
        ("[" * 100_000, "a plan must be JSON: nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "a plan must be JSON: "),
        ("[]", "not a plan: the field 'format'"),
    ],
    ids=["half", "deep", "digits", "list"],
)
def test_what_is_no_plan(text: str, message: str) -> None:
    for read in (PipelinePlan.from_json, Plan.from_json):
        with pytest.raises(PlanError, match=message):
            read(text)
