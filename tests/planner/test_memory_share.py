"""A pipeline for a share of the memory: each device keeps to its own, and the plan says it all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import meshwise as mw
from doubles.golden_plans import P3
from doubles.perceptron import perceptron_pipeline
from meshwise.cluster.host import HostGroup
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError
from meshwise.plan.places import device_memory_bytes
from meshwise.plan.plan import Plan
from meshwise.planner.memory_share import limited_plan, smaller_request
from meshwise.request.pipeline_request import PipelineRequest

pytestmark = pytest.mark.usefixtures("compiled_kernels", "layers_known")


def hosts_of(kind: str, num_devices: int, memory_bytes: int) -> HostGroup:
    (group,) = mw.Cluster.virtual(f"1x {kind}").groups
    device = replace(group.host.device, memory_bytes=memory_bytes)
    return replace(group, host=replace(group.host, num_devices=num_devices, device=device))


# Nine tenths of either are too little for the plan of all of it.
LARGE, SMALL = 8_200_000, 5_000_000
MIXED = ClusterSpec(
    name="two kinds", groups=(hosts_of("dgx-h100", 1, LARGE), hosts_of("dgx-a100", 2, SMALL))
)


def planned(**asked: Any) -> Plan:
    return perceptron_pipeline(**{"cluster": MIXED, **asked}).plan


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_on_devices_that_differ_each_stage_keeps_to_the_share_of_its_own(share: float) -> None:
    plan = planned(memory_share=share)
    assert plan.cluster == MIXED
    assert len(plan.stages) > 1
    for stage in plan.stages:
        has = device_memory_bytes(stage, MIXED)
        assert stage.memory_bytes == has == stage.mesh.device.memory_bytes
        assert stage.peak_bytes <= share * has
    assert Plan.from_json(plan.to_json()) == plan


def test_the_share_is_that_of_the_memory_that_was_asked_for() -> None:
    plan = planned(memory_bytes=LARGE, memory_share=0.9)
    assert plan.cluster == MIXED
    assert {stage.memory_bytes for stage in plan.stages} == {LARGE}
    assert plan.peak_bytes <= 0.9 * LARGE


def test_where_memory_binds_nothing_a_share_plans_the_same() -> None:
    assert perceptron_pipeline(memory_share=0.5).plan == perceptron_pipeline().plan


def test_a_share_that_is_too_small_is_refused() -> None:
    with pytest.raises(InfeasibleError):
        planned(memory_share=0.2)


def test_no_device_is_left_without_memory() -> None:
    # A limit of 0 would mean all that there is.
    small = smaller_request(PipelineRequest(cluster=P3, memory_bytes=10, memory_share=0.01))
    assert small.memory_bytes == 1
    small = smaller_request(PipelineRequest(cluster=MIXED, memory_share=1e-9))
    assert {group.host.device.memory_bytes for group in small.cluster.groups} == {1}


def test_a_limit_that_stays_keeps_what_the_compiler_said() -> None:
    plan = replace(perceptron_pipeline().plan, verified="a compiler 1.0")
    assert limited_plan(plan, lambda stage: stage.memory_bytes) == plan
    assert limited_plan(plan, lambda stage: stage.memory_bytes + 1).verified == ""
