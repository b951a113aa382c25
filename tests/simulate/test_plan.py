"""Pipelines simulated again from their files, as planned and with changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from doubles.pipelines import pipeline
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Stage, WeightGradients
from meshwise.schedules.delay import spread_delays, with_delays
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.registry import choices, make_schedule
from meshwise.simulate.plan import Changes, simulate_plan
from meshwise.simulate.stage_pipeline import stage_pipeline
from meshwise.simulate.weight_delays import asked_delays, at_most_held
from meshwise.units import GIB

PLAN = pipeline(4, 8, "2x p3.8xlarge")


def test_a_file_holds_all_that_a_simulation_needs() -> None:
    read = Plan.from_json(PLAN.to_json())
    found = simulate_plan(read)
    assert found == simulate_plan(PLAN)
    assert found.timeline.step_time_s == PLAN.step_time_s
    assert found.timeline.bubble_share == PLAN.bubble_share
    assert not found.notes
    assert not found.too_large


def test_free_transfers_give_the_closed_form() -> None:
    stages = tuple(
        dataclasses.replace(s, send_bytes=0, forward_s=0.01, backward_s=0.02) for s in PLAN.stages
    )
    host = dataclasses.replace(
        PLAN.cluster.host,
        link=dataclasses.replace(PLAN.cluster.link, latency_s=0.0),
        nic=dataclasses.replace(PLAN.cluster.host.nic, latency_s=0.0),
    )
    group = dataclasses.replace(PLAN.cluster.groups[0], host=host)
    cluster = ClusterSpec(name="no latency", groups=(group,))
    plan = dataclasses.replace(PLAN, stages=stages, cluster=cluster)
    # 1F1B and GPipe: B t + (n - 1) t, then the update.
    for name in ("1f1b", "gpipe"):
        found = simulate_plan(plan, Changes(schedule=choices()[name]))
        assert found.timeline.step_time_s == pytest.approx((8 + 3) * 0.03 + 0.005)
    # Half as many of twice the size.
    found = simulate_plan(plan, Changes(num_microbatches=4))
    assert found.timeline.step_time_s == pytest.approx((4 + 3) * 0.06 + 0.005)
    assert "in proportion to rows" in found.notes[0]


def test_memory_follows_schedule_and_microbatches() -> None:
    def peak(changes: Changes) -> int:
        return simulate_plan(PLAN, changes).timeline.peak_bytes[0]

    fixed = 4 * GIB + GIB // 4
    assert peak(Changes()) == fixed + 4 * GIB // 2
    assert peak(Changes(schedule=choices()["gpipe"])) == fixed + 8 * GIB // 2
    # All but what is held for each micro-batch may not shrink with the rows.
    assert peak(Changes(num_microbatches=16)) == fixed + 4 * GIB // 4


def test_another_cluster_has_other_links_and_memory() -> None:
    found = simulate_plan(PLAN, Changes(cluster=ClusterSpec.virtual("4x p4d.24xlarge")))
    assert found.timeline.step_time_s < PLAN.step_time_s
    assert found.memory_bytes[0] > PLAN.stages[0].memory_bytes
    assert found.notes == (
        "stages planned for V100-SXM2-16GB, with their times, are here on A100-SXM4-40GB (stage "
        "0, 1, 2, 3); plan for that cluster for its own times",
    )


def test_gradients_of_weights_are_delayed_as_little_as_covers_the_transfers() -> None:
    delayed = choices()["eager-1f1b-delayed"]

    def step_s(stages: Sequence[Stage], k: int) -> float:
        delays = spread_delays(k, len(stages))
        table = make_schedule(
            "eager-1f1b", num_stages=len(stages), num_microbatches=8, delays=delays
        )
        return stage_pipeline(
            stages, PLAN.cluster, table.mesh_of_stage, hides_transfers=True
        ).step_time_s(table)

    def sending(num_bytes: int) -> list[Stage]:
        return [dataclasses.replace(s, send_bytes=num_bytes) for s in PLAN.stages]

    assert asked_delays(choices()["eager-1f1b"], PLAN.stages, PLAN.cluster, 8) == ()
    found = [asked_delays(delayed, sending(n), PLAN.cluster, 8) for n in (0, 10**7, 4 * 10**7)]
    assert found[0] == (0, 0, 0, 0)
    assert found[0] < found[1]
    free = step_s(sending(0), 0)
    for num_bytes, delays in zip((10**7, 4 * 10**7), found[1:], strict=True):
        stages, chosen = sending(num_bytes), delays[-1]
        times = {k: step_s(stages, k) for k in range(0, 13, 2)}
        assert list(delays) == spread_delays(chosen, 4)
        if times[chosen] > free * (1 + 1e-9):
            assert times[chosen] <= min(times.values()) * (1 + 1e-9)
        # No smaller delay does as well.
        assert all(times[k] > times[chosen] for k in times if k < chosen)
    changed = simulate_plan(PLAN, Changes(schedule=delayed))
    assert changed.timeline.step_time_s <= step_s(PLAN.stages, 0) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["1f1b-delayed", "eager-1f1b-delayed"])
@pytest.mark.parametrize("num_bytes", [10**7, 4 * 10**7])
def test_delays_of_many_microbatches_are_those_of_whole_steps(name: str, num_bytes: int) -> None:
    # Only a few of 200 micro-batches are simulated to choose.
    schedule, count = choices()[name], 200
    late = WeightGradients(seconds=PLAN.stages[0].backward_s / 2, held_bytes=0, waiting=0)
    stages = [dataclasses.replace(s, send_bytes=num_bytes, weights=late) for s in PLAN.stages]
    slower = dataclasses.replace(stages[1], forward_s=1.1 * stages[1].forward_s)

    def step_s(stages: Sequence[Stage], k: int) -> float:
        table = make_schedule(
            schedule.name, num_stages=4, num_microbatches=count, delays=spread_delays(k, 4)
        )
        return stage_pipeline(
            stages, PLAN.cluster, table.mesh_of_stage, hides_transfers=True
        ).step_time_s(table)

    for some in (stages, [stages[0], slower, *stages[2:]]):
        chosen = asked_delays(schedule, some, PLAN.cluster, count)[-1]
        times = {k: step_s(some, k) for k in range(0, 13, 2)}
        assert len(set(times.values())) > 1
        free = step_s([dataclasses.replace(s, send_bytes=0) for s in some], 0)
        assert times[chosen] <= max(free, min(times.values())) * (1 + 1e-6)
        assert all(times[k] > times[chosen] for k in times if k < chosen)


@pytest.mark.parametrize("num_bytes", [10**6, 10**7])
def test_with_many_stages_the_least_delay_that_suffices_is_found_too(num_bytes: int) -> None:
    plan, schedule, count = pipeline(40, 80, "10x p3.8xlarge"), choices()["eager-1f1b-delayed"], 80
    late = WeightGradients(seconds=plan.stages[0].backward_s / 2, held_bytes=0, waiting=0)
    stages = [
        dataclasses.replace(s, send_bytes=num_bytes, weights=late, memory_bytes=1000 * GIB)
        for s in plan.stages
    ]
    table = make_schedule(schedule.name, num_stages=40, num_microbatches=count)

    def step_s(stages: Sequence[Stage], k: int) -> float:
        priced = stage_pipeline(stages, plan.cluster, table.mesh_of_stage, hides_transfers=True)
        return priced.step_time_s(with_delays(table, spread_delays(k, 40)))

    chosen = asked_delays(schedule, stages, plan.cluster, count)[-1]
    free = step_s([dataclasses.replace(s, send_bytes=0) for s in stages], 0) * (1 + 1e-9)
    # Delays of 2, 4, ... half steps; every second one is tried first.
    assert chosen > 2
    assert step_s(stages, chosen) <= free < step_s(stages, chosen - 2)


def test_delays_are_no_longer_than_fits() -> None:
    schedule = choices()["eager-1f1b-delayed"]
    late = WeightGradients(seconds=PLAN.stages[0].backward_s / 2, held_bytes=4 * GIB, waiting=0)
    stages = [dataclasses.replace(s, send_bytes=10**7, weights=late) for s in PLAN.stages]

    def asked(memory_bytes: int) -> tuple[int, ...]:
        some = [dataclasses.replace(s, memory_bytes=memory_bytes) for s in stages]
        return asked_delays(schedule, some, PLAN.cluster, 8)

    def peak(delays: Sequence[int]) -> int:
        table = make_schedule("eager-1f1b", num_stages=4, num_microbatches=8, num_meshes=4)
        roomy = [dataclasses.replace(s, memory_bytes=1000 * GIB) for s in stages]
        apart = with_delays(table, delays)
        return max(stage.peak_bytes for stage in at_most_held(roomy, apart))

    free = asked(1000 * GIB)
    assert asked(peak(free)) == free
    tight = asked(peak(free) - 1)
    assert sum(tight) < sum(free)
    assert peak(tight) < peak(free)
    # Without delays one micro-batch waits, whether it fits or not.
    assert asked(GIB) == (0, 0, 0, 0)
    # What waits between stages takes from the room for delays.
    waits = [dataclasses.replace(s, memory_bytes=peak(free), waiting_bytes=1) for s in stages]
    assert asked_delays(schedule, waits, PLAN.cluster, 8) == tight


def test_what_does_not_fit_is_named() -> None:
    tight = tuple(dataclasses.replace(s, memory_bytes=5 * GIB + GIB // 2) for s in PLAN.stages)
    found = simulate_plan(dataclasses.replace(PLAN, stages=tight))
    assert found.too_large == (0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            Changes(cluster=ClusterSpec.virtual("1x p3.8xlarge")),
            r"field 'stages\[2\]': 2 devices .* not in cluster '1x p3.8xlarge' of 1 host and 4",
        ),
        (Changes(num_microbatches=5), "5 micro-batches do not divide the batch of 32"),
        (Changes(schedule=Interleaved(chunks=2)),
         "interleaved-1f1b needs 2 on each mesh; the plan has 4 stages on 4 meshes"),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit(changes: Changes, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        simulate_plan(PLAN, changes)
