"""State stays in the memory of hosts where memory binds, or where it is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import meshwise as mw
from doubles.adam_step import adam_step, shapes
from doubles.perceptron import perceptron
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.host import HostGroup
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError, PlanError
from meshwise.plan.offload import crossing_s
from meshwise.plan.plan import Plan

pytestmark = pytest.mark.usefixtures("no_buckets")

CLUSTER = mw.Cluster.virtual("1x dgx-h100")
# Wide layers and few rows: state is most of the memory.
STATE, BATCH = shapes((1024,) * 7)
# What no plan fits into that leaves all state on the devices.
LIMIT = 10_500_000


def planned(offload: bool | None, memory_bytes: int | None = None, **more: Any) -> Plan:
    more = {"cluster": CLUSTER, "memory_bytes": memory_bytes} | more
    step = mw.parallelize(adam_step(), method=mw.Auto(offload=offload), **more)
    return step.plan(STATE, BATCH)


@cache
def plans() -> tuple[Plan, Plan]:
    """Without a limit: nothing in the memory of hosts, and all that may be."""
    return planned(False), planned(True)


def host_bytes(plan: Plan) -> int:
    """Bytes of one device in the memory of its host, each array split evenly."""
    sizes = plan.mesh.sizes
    found = 0
    for argument in plan.stages[0].arguments:
        if argument.in_host:
            parts = 1
            for axis in (a for dim in argument.layout.dims for a in dim):
                parts *= sizes[axis]
            size = argument.itemsize
            for n in argument.shape:
                size *= n
            found += size // parts
    return found


def test_with_room_enough_nothing_leaves_the_devices() -> None:
    free, _ = plans()
    assert planned(None).decision == free.decision
    assert not free.decision.in_host


def test_what_is_asked_for_is_paid_for() -> None:
    free, asked = plans()
    assert len(asked.decision.in_host) == 12
    assert asked.peak_bytes < free.peak_bytes
    crossing = crossing_s(host_bytes(asked), asked.mesh.device)
    assert asked.step_time_s >= free.step_time_s + 0.999 * crossing
    arguments = dict(enumerate(asked.stages[0].arguments))
    told = [dict(arguments[i].communication)["host"] for i in asked.decision.in_host]
    assert sum(told) == pytest.approx(crossing)
    assert "in host memory" in asked.explain()
    assert "in host memory" not in free.explain()
    assert Plan.from_json(asked.to_json()) == asked


@pytest.mark.slow
def test_where_nothing_fits_no_more_than_needed_leaves_the_devices() -> None:
    with pytest.raises(InfeasibleError):
        planned(False, LIMIT)
    found, asked = planned(None, LIMIT), planned(True, LIMIT)
    assert max(found.peak_bytes, asked.peak_bytes) <= LIMIT
    assert len(asked.decision.in_host) == 12
    assert 0 < len(found.decision.in_host) < 12
    assert found.step_time_s < asked.step_time_s


def test_a_smaller_limit_is_refused_with_or_without() -> None:
    _, asked = plans()
    for offload in (True, None):
        with pytest.raises(InfeasibleError):
            planned(offload, asked.peak_bytes // 2)


def changed(**fields: Any) -> ClusterSpec:
    """The cluster with other devices."""
    (group,) = CLUSTER.groups
    host = replace(group.host, device=replace(group.host.device, **fields))
    return ClusterSpec(name="changed", groups=(HostGroup(count=group.count, host=host),))


def test_a_host_needs_room_for_it() -> None:
    small = changed(host_memory_bytes=host_bytes(plans()[1]) - 1)
    with pytest.raises(
        InfeasibleError, match="of the state of each device would lie in the memory"
    ):
        planned(True, cluster=small)


def test_without_a_known_way_to_the_host_nothing_leaves_the_devices() -> None:
    unknown = changed(host_bytes_per_s=0.0, host_memory_bytes=0)
    with pytest.raises(PlanError, match=r"say host_bytes_per_s and host_memory_bytes of the devic"):
        planned(True, cluster=unknown)
    with pytest.raises(InfeasibleError):
        planned(None, LIMIT, cluster=unknown)


def test_on_cpus_it_is_done_if_asked_for_only() -> None:
    cluster = cpu_cluster(4)
    free = planned(False, cluster=cluster)
    assert planned(True, cluster=cluster).peak_bytes == free.peak_bytes
    with pytest.raises(InfeasibleError):
        planned(None, free.peak_bytes // 2, cluster=cluster)


def test_a_step_without_such_state_is_refused_if_asked_for() -> None:
    step, (weights, _), batch = perceptron((64, 64))

    def descent(weights: Any, batch: Any) -> Any:
        (weights, _), loss = step((weights, weights), batch)
        return weights, loss

    parallel = mw.parallelize(descent, method=mw.Auto(offload=True), cluster=CLUSTER)
    with pytest.raises(InfeasibleError, match="no state of this step can stay in the memory of h"):
        parallel.plan(weights, batch)


@pytest.mark.parametrize("offload", ["yes", 2])
def test_other_wishes_are_refused(offload: Any) -> None:
    with pytest.raises(PlanError, match=r"Auto\(offload="):
        mw.Auto(offload=offload)


def test_prices_of_other_choices_leave_state_where_it_is() -> None:
    step = mw.parallelize(adam_step(), method=mw.Auto(offload=True), cluster=CLUSTER)
    priced = step.priced(STATE, BATCH, rivals=2, more_bytes=2**20)
    assert priced.memory_price is not None
    assert priced.memory_price.step_time_s == pytest.approx(priced.step_time_s)


@pytest.mark.slow
def test_a_pipeline_that_does_not_fit_leaves_state_in_the_memory_of_hosts() -> None:
    more: dict[str, Any] = {"cluster": CLUSTER, "num_microbatches": 2}
    state, batch = shapes((1024,) * 5)

    def pipeline(offload: bool | None, memory_bytes: int | None = None) -> Plan:
        method = mw.Auto(stages=2, offload=offload, schedule="1f1b")
        step = mw.parallelize(adam_step(), method=method, memory_bytes=memory_bytes, **more)
        return step.plan(state, batch)

    free, asked = pipeline(False), pipeline(True)
    assert asked.peak_bytes < free.peak_bytes
    assert asked.step_time_s > free.step_time_s
    for stage in asked.stages:
        for layer in stage.layers:
            assert [a.in_host for a in layer.arguments] == [False, True, True]
        # At least two moments of two matrices, split over four devices.
        assert stage.once_s > crossing_s(2 * 2 * 1024 * 1024 * 4 // 4, stage.mesh.device)
    assert pipeline(None).decisions == free.decisions
    # Parameters and gradients fit, and no moments beside them.
    limit = 8_000_000
    found = pipeline(None, limit)
    assert found.peak_bytes <= limit
    assert all(decision.in_host for decision in found.decisions)
    assert "in the memory of hosts" in found.space
    with pytest.raises(InfeasibleError):
        pipeline(False, limit)
