"""The objective and memory by hand, on three stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from evaluation.baselines.built_stages import build_stages

from doubles.submesh_kinds import uniform_submeshes
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_problem import (
    StageCosts,
    StageProblem,
    StageSpan,
    as_alpa,
    memory_bytes,
)
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.zero_bubble_h1 import ZERO_BUBBLE

# Times of a micro-batch of layers 0, 1, 2 on one device; nothing else is possible.
TIMES = (2.0, 5.0, 3.0)
ONCE = (0.5, 0.25, 1.5)
TRANSFERS = (5.0, 8.0)


def three_stages(schedule=ONE_F_ONE_B, num_microbatches=4):
    times = np.full((3, 3, 1, 1), np.inf)
    once, resident, held, temporary = (np.zeros((3, 3, 1, 1)) for _ in range(4))
    for i in range(3):
        times[i, i], once[i, i] = TIMES[i], ONCE[i]
        resident[i, i], held[i, i], temporary[i, i] = 10.0, 4.0, 1.0
    return StageProblem(
        costs=StageCosts(
            submeshes=uniform_submeshes(1, 4, 23.0)[:1],
            microbatch_s=times,
            once_s=once,
            resident_bytes=resident,
            microbatch_bytes=held,
            temporary_bytes=temporary,
        ),
        num_devices=3,
        num_microbatches=num_microbatches,
        schedule=schedule,
        transfer_s=np.array(TRANSFERS)[:, None, None],
    )


STAGES = tuple(
    StageSpan(first_layer=i, last_layer=i, submesh=0, variant=0, first_device=i) for i in range(3)
)


def test_eq_2():
    # 2 + 5 + 3, and three more micro-batches of the slowest, 5.
    problem = as_alpa(three_stages())
    assert step_time(problem, STAGES).total_s == 10.0 + 3 * 5.0
    found = build_stages(three_stages(), "alpa")
    assert found.stages == STAGES
    assert found.total_s == 25.0


@pytest.mark.parametrize(
    ("schedule", "fill", "steady"),
    [
        # Half of the transfers at both ends: slots 2 + 2.5, 5 + 6.5, 3 + 4.
        (ONE_F_ONE_B, 10.0, 3 * 11.5),
        (GPIPE, 10.0, 3 * 11.5),
        # Slots 2.5, 6.5, 4 (the transfers).
        (EAGER, 10.0, 3 * 6.5),
        (ZERO_BUBBLE, 10.0, 3 * 6.5),
        # Half of each time fills; the other half is added.
        (Interleaved(chunks=2), 5.0, 3 * 11.5 + 2.5),
    ],
)
def test_the_whole_objective(schedule, fill, steady):
    time = step_time(three_stages(schedule), STAGES)
    assert (time.fill_s, time.transfer_s, time.steady_s) == (fill, 13.0, steady)
    assert time.once_s == 1.5
    assert time.total_s == fill + 13.0 + steady + 1.5


def test_what_arrives_is_gathered_before_it_is_used():
    problem = three_stages()
    gather = np.zeros((3, 3, 1, 1))
    for i, seconds in enumerate((1.0, 4.0, 2.0)):
        gather[i, i] = seconds
    costs = replace(problem.costs, gather_s=gather)
    time = step_time(replace(problem, costs=costs), STAGES)
    # Times 2 + 1, 5 + 4, 3 + 2 of a micro-batch, with the same transfers at the ends.
    assert (time.fill_s, time.transfer_s, time.steady_s) == (17.0, 13.0, 3 * 15.5)
    # The paper's problem has no transfers, and nothing that they bring.
    assert step_time(as_alpa(replace(problem, costs=costs)), STAGES).total_s == 25.0


def test_equal_stages_take_what_the_schedules_say():
    # B t + (n - 1) of t, t / v: docs/facts.md section 5.
    problem = three_stages()
    times = np.where(np.isfinite(problem.costs.microbatch_s), 6.0, np.inf)
    costs = replace(problem.costs, microbatch_s=times, once_s=np.zeros_like(times))
    for schedule, shown in ((ONE_F_ONE_B, 6.0), (Interleaved(chunks=3), 2.0)):
        equal = replace(problem, costs=costs, transfer_s=None, schedule=schedule)
        assert step_time(equal, STAGES).total_s == pytest.approx(4 * 6.0 + 2 * shown)


def test_memory_follows_the_schedule():
    # 10 + 1 + 4 for each micro-batch in flight.
    for schedule, in_flight in ((ONE_F_ONE_B, (3, 2, 1)), (GPIPE, (4, 4, 4)), (EAGER, (4, 3, 1))):
        problem = three_stages(schedule)
        need = [memory_bytes(problem, STAGES, i) for i in range(3)]
        assert need == [11.0 + 4.0 * n for n in in_flight]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"microbatch_s": np.ones((2, 3, 1, 1))}, r"shape \(2, 3, 1, 1\), expected \(L, L, 1, V\)"),
        ({"microbatch_s": np.ones((3, 3, 2, 1))}, r"expected \(L, L, 1, V\)"),
        ({"once_s": np.ones((3, 3, 1, 2))}, r"`once_s` has shape \(3, 3, 1, 2\)"),
        ({"gather_s": np.ones((3, 3, 1, 2))}, r"`gather_s` has shape \(3, 3, 1, 2\)"),
    ],
)
def test_costs_of_another_shape_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(three_stages().costs, **change)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resident_bytes", -1.0),
        ("microbatch_bytes", np.nan),
        ("once_s", -1e-9),
        ("microbatch_s", np.nan),
    ],
)
def test_costs_that_are_none_are_refused(name, value):
    problem = three_stages()
    costs = replace(problem.costs, **{name: np.full((3, 3, 1, 1), value)})
    with pytest.raises(ValueError, match=f"`{name}` holds values"):
        build_stages(replace(problem, costs=costs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_devices": 0}, "must be at least 1"),
        ({"num_microbatches": 0}, "must be at least 1"),
        ({"transfer_s": np.zeros((3, 1, 1))}, r"shape \(3, 1, 1\), not \(2, 1, 1\)"),
        ({"transfer_s": np.full((2, 1, 1), np.inf)}, "infinite or below 0"),
    ],
)
def test_problems_that_are_none_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(three_stages(), **change)
