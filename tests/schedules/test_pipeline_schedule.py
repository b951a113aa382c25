"""Micro-batches in flight and fill, against docs/facts.md section 5."""

from __future__ import annotations

import numpy as np
import pytest

from meshwise.schedules.dual_pipe_v import DUAL_PIPE_V
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.gpipe import GPIPE, GPipe
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ALPA, ONE_F_ONE_B, OneFOneB
from meshwise.schedules.zero_bubble_h1 import ZERO_BUBBLE
from meshwise.schedules.zero_bubble_v import ZERO_BUBBLE_V, ZeroBubbleV


@pytest.mark.parametrize(
    ("schedule", "in_flight"),
    [
        # Four stages, 6 micro-batches; from the first stage to the last.
        (GPIPE, [6, 6, 6, 6]),
        (ONE_F_ONE_B, [4, 3, 2, 1]),
        (ZERO_BUBBLE, [4, 3, 2, 1]),
        (EAGER, [6, 5, 3, 1]),
        # Warm-up of 2 (n - i - 1) + (v - 1) n + 1 chunks, each half a stage: 11, 9, 7, 5.
        (Interleaved(chunks=2), [5.5, 4.5, 3.5, 2.5]),
        # 2 n chunks, and one more.
        (ZERO_BUBBLE_V, [4.0] * 4),
        (DUAL_PIPE_V, [4.5] * 4),
    ],
)
def test_in_flight(schedule, in_flight):
    assert [schedule.in_flight(4 - i, 4, 6) for i in range(4)] == in_flight


def test_in_flight_is_never_more_than_there_is():
    for schedule in (GPIPE, ONE_F_ONE_B, EAGER, ZERO_BUBBLE, Interleaved(chunks=3)):
        assert [schedule.in_flight(s, 8, 2) for s in (8, 4)] == [2, 2]
    # Eq. 5 does not look at B.
    assert ALPA.in_flight(8, 8, 2) == 8


def test_fill():
    time = np.array([6.0, 3.0])
    assert ONE_F_ONE_B.fill_s(time).tolist() == [6.0, 3.0]
    assert Interleaved(chunks=3).fill_s(time).tolist() == [2.0, 1.0]
    # Gradients of weights are not known apart.
    assert ZERO_BUBBLE.fill_s(time).tolist() == [6.0, 3.0]
    # The forward of half a stage, taken for as long as each of its gradients.
    assert ZERO_BUBBLE_V.fill_s(time).tolist() == DUAL_PIPE_V.fill_s(time).tolist() == [1.0, 0.5]


def test_stages_lie_on_meshes_in_turns_or_down_and_up():
    assert Interleaved(chunks=2).mesh_of_stage(6, 3) == (0, 1, 2, 0, 1, 2)
    assert ZERO_BUBBLE_V.mesh_of_stage(6, 3) == (0, 1, 2, 2, 1, 0)


def test_interleaving_needs_groups_of_micro_batches():
    assert Interleaved(chunks=2).allows(4, 8)
    assert not Interleaved(chunks=2).allows(3, 8)
    assert ONE_F_ONE_B.allows(3, 8)


@pytest.mark.parametrize(
    ("schedule", "chunks"), [(OneFOneB, 2), (Interleaved, 1), (GPipe, 0), (ZeroBubbleV, 3)]
)
def test_chunks_belong_to_interleaving(schedule, chunks):
    with pytest.raises(ValueError, match=f"'{schedule.name}' with {chunks} chunks"):
        schedule(chunks=chunks)
