"""A pipeline that needs more memory than its devices have, as text."""

from __future__ import annotations

import dataclasses

from doubles.pipelines import pipeline, with_memory
from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.plan import Plan
from meshwise.plan.text.device_memory import mesh_memory_bytes, plan_memory
from meshwise.report.plan_memory import simulated_memory
from meshwise.report.simulation_text import simulation_data, simulation_text
from meshwise.simulate.plan import Changes, simulate_plan
from meshwise.units import GIB

# Its stages need 5.25 and 4.75 GiB a device.
PLAN = pipeline(2, 8)
SMALL = with_memory(PLAN, 5 * GIB, 5 * GIB)
WARNING = [
    "does not fit: stage 0 needs 5.25 GiB, a device of 1x p3.8xlarge has 5 GiB: 256 MiB too much",
    "Plan again with this version of Meshwise: earlier ones could return such plans.",
]


def in_turns() -> Plan:
    """Two meshes with two stages each."""
    plan = pipeline(4, 8, schedule="1f1b")
    stages = tuple(
        dataclasses.replace(s, first_device=k % 2, in_flight=4 - k)
        for k, s in enumerate(plan.stages)
    )
    return dataclasses.replace(plan, stages=stages, schedule="interleaved-1f1b")


def test_the_text_starts_with_it() -> None:
    assert SMALL.explain().splitlines()[:3] == [*WARNING, ""]
    assert SMALL.explain().split("\n\n", 1)[1].startswith("model         hand-made\n")
    exact = with_memory(PLAN, *PLAN.mesh_peak_bytes)
    assert exact.explain().startswith("model         hand-made\n")
    one_byte_less = with_memory(PLAN, *(size - 1 for size in PLAN.mesh_peak_bytes))
    assert plan_memory(one_byte_less).too_large == (0, 1)


def test_a_mesh_has_what_the_least_of_its_stages_says() -> None:
    plan = in_turns()
    found = with_memory(plan, 16 * GIB, 16 * GIB, 12 * GIB, 13 * GIB)
    assert mesh_memory_bytes(found) == (12 * GIB, 13 * GIB)
    assert simulate_plan(found).memory_bytes == (12 * GIB, 13 * GIB)
    peaks = plan.mesh_peak_bytes
    # No stage of its own needs that much.
    assert peaks[0] > 10 * GIB > max(stage.peak_bytes for stage in plan.stages)
    tight = plan_memory(with_memory(plan, 10 * GIB, 16 * GIB, 16 * GIB, 16 * GIB))
    assert tight.sentence.startswith("does not fit: mesh 0 (stages 0, 2) needs 11.2 GiB, a device ")


def test_where_hosts_differ_the_mesh_is_meant() -> None:
    cluster = ClusterSpec.virtual("1x p3.8xlarge + 1x p4d.24xlarge")
    mixed = dataclasses.replace(SMALL, cluster=cluster)
    assert "stage 0 needs 5.25 GiB, its smallest device has 5 GiB" in mixed.explain()


def test_a_simulation_starts_with_it_and_says_it_once() -> None:
    text = simulation_text(SMALL, simulate_plan(SMALL))
    assert text.splitlines()[:3] == [*WARNING, ""]
    assert text.count("does not fit") == 1
    data = simulation_data(SMALL, simulate_plan(SMALL))
    assert data["fits"] is False
    assert [item["stages"] for item in data["too_large"]] == [[0]]
    assert "fit" not in simulation_text(PLAN, simulate_plan(PLAN))
    assert simulation_data(PLAN, simulate_plan(PLAN))["too_large"] == []


def test_a_changed_simulation_is_judged_by_itself() -> None:
    larger = Changes(cluster=ClusterSpec.virtual("1x p4d.24xlarge"))
    assert simulated_memory(SMALL, simulate_plan(SMALL, larger)).fits
    halves = Changes(num_microbatches=4)
    tight = with_memory(PLAN, 6 * GIB, 6 * GIB)
    assert plan_memory(tight).fits
    found = simulated_memory(tight, simulate_plan(tight, halves))
    assert found.sentence == (
        "does not fit: stage 0 needs 6.5 GiB, a device of 1x p3.8xlarge has 6 GiB: 512 MiB too "
        "much. The stages are those of the plan: plan with this cluster, schedule and number of "
        "micro-batches for stages that fit."
    )


def test_what_is_predicted_counts_where_the_simulation_needs_less() -> None:
    first = dataclasses.replace(PLAN.stages[0], in_flight=8, memory_bytes=6 * GIB)
    plan = dataclasses.replace(PLAN, stages=(first, *PLAN.stages[1:]))
    simulation = simulate_plan(plan)
    assert simulation.too_large == ()
    assert simulated_memory(plan, simulation) == plan_memory(plan)
    assert simulation_text(plan, simulation).splitlines()[0] == plan.explain().splitlines()[0]
