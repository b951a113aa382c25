"""MaxText's pipeline: its table runs, and its bubble is as published."""

from __future__ import annotations

import pytest

from meshwise.errors import PlanError
from meshwise.schedules.clocks import clock_times
from meshwise.schedules.verify import verify_schedule
from meshwise.trainers.circular import Circular


@pytest.mark.parametrize("meshes", [2, 4])
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("rounds", [1, 3])
def test_the_bubble_is_that_of_its_configuration(meshes: int, chunks: int, rounds: int) -> None:
    count = rounds * meshes
    table = Circular(chunks=chunks).table(meshes * chunks, count, meshes)
    verify_schedule(table)
    bubble = (meshes - 1) / (chunks * count + meshes - 1)
    total = max(span.end for mesh in clock_times(table) for span in mesh)
    assert 1 - 2 * chunks * count / total == pytest.approx(bubble)


def test_micro_batches_make_whole_rounds() -> None:
    assert not Circular(chunks=2).allows(4, 6)
    with pytest.raises(PlanError, match="6 micro-batches are no multiples of 4 meshes"):
        Circular(chunks=2).table(8, 6, 4)
    with pytest.raises(ValueError, match="0 chunks"):
        Circular(chunks=0)
