"""The points of trainers: all devices, even stages, whole rows, and nothing twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwise.trainers.registry import TRAINERS
from meshwise.trainers.sizes import Sizes


def sizes(**changes: object) -> Sizes:
    known: dict[str, object] = {
        "num_devices": 16,
        "devices_per_host": 8,
        "batch_size": 32,
        "microbatch_counts": (1, 2, 4, 8, 16),
        "num_blocks": 24,
        "num_heads": 16,
        "sequence": (1, 1024),
    }
    return Sizes(**(known | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("experts", [1, 8])
def test_every_point_can_run(name: str, experts: int) -> None:
    of = sizes(num_experts=experts)
    points = list(TRAINERS[name].points(of))
    assert len(set(points)) == len(points)
    for p in points:
        assert p.num_devices == of.num_devices
        assert of.num_blocks % (p.pipeline * p.chunks) == 0
        assert of.batch_size % (p.num_microbatches * p.row_parts) == 0
        assert of.num_heads % p.tensor == 0
        assert of.num_experts % p.expert == 0
        assert TRAINERS[name].schedule(p).allows(p.pipeline, p.num_microbatches)
    assert max(p.expert for p in points) == experts


def test_megatrons_grid_is_complete() -> None:
    of = sizes(num_devices=8, num_blocks=4, sequence=None, microbatch_counts=(1, 2, 4))
    found = {
        (p.pipeline, p.data, p.tensor, p.num_microbatches, p.chunks)
        for p in TRAINERS["megatron"].points(of)
    }
    expected = {
        (pp, dp, tp, b, v)
        for pp in (1, 2, 4)
        for dp in (1, 2, 4, 8)
        for tp in (1, 2, 4, 8)
        for b in (1, 2, 4)
        for v in ((1,) if pp == 1 or b % pp else (1, 2, 4))
        if pp * dp * tp == 8 and 4 % (pp * v) == 0
    }
    assert found == expected


def test_a_sequence_is_split_only_where_rows_cannot_be() -> None:
    points = list(TRAINERS["megatron"].points(sizes()))
    assert all(32 // (p.num_microbatches * p.row_parts) == 1 for p in points if p.context > 1)
    few = sizes(batch_size=1, microbatch_counts=(1,))
    points = list(TRAINERS["megatron"].points(few))
    assert points
    assert all(p.row_parts == 1 for p in points)
    assert max(p.context for p in points) == 16


def test_keys_are_gathered_or_go_round_the_same_devices() -> None:
    few = sizes(batch_size=1, microbatch_counts=(1,), num_devices=16, num_blocks=3)
    for trainer in TRAINERS.values():
        without, both = (set(trainer.points(replace(few, has_rings=r))) for r in (False, True))
        assert {p for p in both if p.ring == 1} == without
        assert {replace(p, context=p.ring, ring=1) for p in both if p.ring > 1} == {
            p for p in without if p.context > 1
        }
        assert all(p.context == 1 or p.ring == 1 for p in both)
        assert all(p.num_devices == 16 for p in both)


def test_no_even_stages_leave_one_stage() -> None:
    for trainer in TRAINERS.values():
        assert {p.pipeline for p in trainer.points(sizes(num_blocks=7))} == {1}
