"""A step of 3 uneven stages and 4 micro-batches, computed by hand.

Seconds, bytes, one host a stage, cards of 10 B/s each way, plain 1F1B:

    stage 0: F 2, B 4, apply 1.25
    stage 1: F 3, B 5, apply 2.25
    stage 2: F 1, B 2, apply 0.25

    a01 = activations from stage 0 to stage 1: 10 B    g10 = their gradients: 10 B
    a02 = a skip from stage 0 to stage 2:       5 B    g20 = its gradients:    5 B
    a12 = activations from stage 1 to stage 2: 20 B    g21 = their gradients: 10 B

    mesh 0: F0 F1 F2 B0 F3 B1 B2 B3
    mesh 1: F0 F1 B0 F2 B1 F3 B2 B3
    mesh 2: F0 B0 F1 B1 F2 B2 F3 B3

What leaves stage 0 leaves in two flows of 5 B/s: a02 takes 1 s, then a01 has 5 B left and the card
for itself, 1.5 s in all.  The same for what leaves stage 2: g20 1 s, g21 1.5 s.

  0      mesh 0 runs F0 to 2, F1 to 4, F2 to 6.  a01 arrives at 3.5 and 5.5, a02 at 3 and 5.
  3.5    mesh 1 runs F0 to 6.5, then F1 (its input is there since 5.5) to 9.5.
  6      a01 and a02 of micro-batch 2 start, 5 B/s each.
  6.5    a12 of micro-batch 0 starts, 20 B.  The card of host 2 receives it and a02 (2.5 B left):
         5 B/s each.  a02 ends at 7; a12 has 17.5 B left and 10 B/s: 8.75.  a01 has 5 B left: 7.5.
  8.75   mesh 2 runs F0 to 9.75, B0 to 11.75.
  9.5    a12 of micro-batch 1, alone: 11.5.
  11.75  mesh 2 runs F1 to 12.75, B1 to 14.75.  Gradients of micro-batch 0: g20 12.75, g21 13.25.
  13.25  mesh 1 runs B0 to 18.25, then F2 (there since 7.5) to 21.25, B1 (see next) to 26.25.
  14.75  Gradients of micro-batch 1: g20 15.75, g21 16.25.
  18.25  g10 of micro-batch 0, alone: 19.25.
  19.25  mesh 0 runs B0 to 23.25, F3 to 25.25.
  21.25  a12 of micro-batch 2, alone: 23.25.  mesh 2 runs F2 to 24.25, B2 to 26.25.
  25.25  a02 of micro-batch 3 to 26.25; a01 then has 5 B left.
  26.25  g10 of micro-batch 1 and g21, g20 of micro-batch 2 start beside a01.  Host 1 receives a01
         and g21, host 0 receives g10 and g20, host 2 sends g21 and g20: every flow has 5 B/s.
  27.25  a01 and g20 end; g10 and g21 have 5 B left and 10 B/s: 27.75.
  27.25  mesh 1 runs F3 to 30.25, then B2 (27.75) to 35.25.
  27.75  mesh 0 runs B1 to 31.75.
  30.25  a12 of micro-batch 3, alone: 32.25.  mesh 2 runs F3 to 33.25, B3 to 35.25, apply to 35.5.
  35.25  g10 of micro-batch 2 and g21, g20 of micro-batch 3 start.  Host 2 sends two, host 0
         receives two: 5 B/s each.  36.25: g20 ends; g10 and g21 have 5 B left: 36.75.
  36.75  mesh 1 runs B3 to 41.75, apply to 44.  mesh 0 runs B2 to 40.75.
  41.75  g10 of micro-batch 3, alone: 42.75.
  42.75  mesh 0 runs B3 to 46.75, apply to 48.

Idle while a transfer runs that is waited for:
  mesh 0: before B0 g20 1 and g10 1; before B1 1.5, B2 1.5, B3 1.           6.0
  mesh 1: before F0 1.5, B0 1.5, F3 1 (26.25 to 27.25), B3 1.5.             5.5
  mesh 2: before F0 a02 1 and a12 2.25; before F2 2, F3 2.                  7.25
Work: 4 * 6 + 1.25 = 25.25, 4 * 8 + 2.25 = 34.25, 4 * 3 + 0.25 = 12.25.

Memory: resident 100, 200, 300; held 10, 20, 30 a micro-batch; 2 while anything runs.
  mesh 0: three micro-batches and what runs: 100 + 30 + 2 = 132.
  mesh 1: at 6.5 F1 runs, F0 is held: 200 + 40 + 2 = 242.
  mesh 2: one micro-batch and what runs: 300 + 30 + 2 = 332.
"""

from __future__ import annotations

import pytest

from meshwise.schedules.registry import make_schedule
from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.pipeline import PricedPipeline
from meshwise.simulate.stages import StageBoundary, StageCost
from meshwise.simulate.timeline import ONCE

HOST = HostLinks(nic_bytes_per_s=10.0, link_bytes_per_s=1.0)


def stage(forward_s, backward_s, apply_s, resident_bytes, held_bytes):
    return StageCost(
        forward_s=forward_s,
        backward_s=backward_s,
        apply_s=apply_s,
        resident_bytes=resident_bytes,
        held_bytes=held_bytes,
        temporary_bytes=2,
    )


STAGES = (stage(2, 4, 1.25, 100, 10), stage(3, 5, 2.25, 200, 20), stage(1, 2, 0.25, 300, 30))
BOUNDARIES = (
    StageBoundary(
        source=0,
        destination=1,
        forward=(Flow(0, 1, 10.0),),
        backward=(Flow(1, 0, 10.0),),
    ),
    StageBoundary(
        source=1,
        destination=2,
        forward=(Flow(1, 2, 20.0),),
        backward=(Flow(2, 1, 10.0),),
    ),
    StageBoundary(
        source=0,
        destination=2,
        forward=(Flow(0, 2, 5.0),),
        backward=(Flow(2, 0, 5.0),),
    ),
)


@pytest.fixture(scope="module")
def timeline():
    schedule = make_schedule("1f1b", num_stages=3, num_microbatches=4)
    return PricedPipeline(STAGES, BOUNDARIES, [HOST] * 3).simulate(schedule)


def as_text(timeline):
    """One line for each event, transfer and step of memory."""
    lines = []
    for e in timeline.events:
        what = e.kind if e.microbatch == ONCE else f"{e.kind}{e.microbatch}"
        lines.append(f"mesh {e.mesh} {what} {e.start_s:g} {e.end_s:g}")
    for t in timeline.transfers:
        kind = "a" if t.source_stage < t.destination_stage else "g"
        what = f"{kind}{t.source_stage}{t.destination_stage} {t.microbatch}"
        lines.append(f"{what} {t.num_bytes:g} B {t.start_s:g} {t.end_s:g}")
    for mesh, steps in enumerate(timeline.memory):
        lines += [f"memory {mesh} {step.time_s:g} {step.num_bytes}" for step in steps]
    return "\n".join(lines) + "\n"


def test_the_timeline_is_the_one_computed_by_hand(timeline, golden):
    golden("simulate/three_stages.txt", as_text(timeline))


def test_what_is_said_of_the_step_is_what_was_computed_by_hand(timeline):
    assert timeline.step_time_s == 48.0
    assert timeline.busy_s == (25.25, 34.25, 12.25)
    assert timeline.bubble_share == pytest.approx(1 - 71.75 / 144, rel=1e-12)
    assert timeline.exposed_s == (6.0, 5.5, 7.25)
    assert timeline.peak_bytes == (132, 242, 332)


def test_two_stages_that_stop_for_their_transfers():
    """F 1, B 2, transfers 1 s.

    a0 1 to 2; F1 on mesh 0 and F0 on mesh 1 2 to 3; a1 3 to 4; B0 on mesh 1 4 to 6; g0 6 to 7; B0
    on mesh 0 7 to 9, F1 and B1 on mesh 1 7 to 10; g1 10 to 11; B1 on mesh 0 11 to 13.  With overlap
    F1 on mesh 0 runs beside a0, F1 on mesh 1 beside g0: 11.
    """
    schedule = make_schedule("1f1b", num_stages=2, num_microbatches=2)
    stages = [StageCost(forward_s=1.0, backward_s=2.0)] * 2
    there, back = (Flow(0, 1, 10.0),), (Flow(1, 0, 10.0),)
    boundary = StageBoundary(source=0, destination=1, forward=there, backward=back)
    stops = PricedPipeline(stages, [boundary], [HOST] * 2, False).simulate(schedule)
    assert [(t.start_s, t.end_s) for t in stops.transfers] == [(1, 2), (3, 4), (6, 7), (10, 11)]
    assert stops.step_time_s == 13.0
    assert stops.exposed_s == (4.0, 4.0)
    flows = PricedPipeline(stages, [boundary], [HOST] * 2).simulate(schedule)
    assert flows.step_time_s == 11.0
