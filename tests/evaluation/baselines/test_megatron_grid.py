"""Megatron's grid: what is in it, what is refused and why, which layers a chunk holds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from evaluation.baselines.megatron_grid import megatron_grid

import meshwise as mw
from meshwise.baselines.pipelines.block_layers import Body
from meshwise.baselines.pipelines.even_stages import chunk_ranges, stage_kind

HOST = mw.Cluster.virtual("1x p3.16xlarge")
TWO = mw.Cluster.virtual("2x p3.16xlarge")


def test_every_point_uses_every_device_and_whole_rows():
    points, refused = megatron_grid(TWO, 24, 32, (1, 2, 4, 8))
    assert not [r for r in refused if r.label.startswith("pp=") and r.label != "pp=16"]
    for p in points:
        assert p.data_parallel * p.tensor_parallel * p.stages == 16
        assert 24 % (p.stages * p.chunks) == 0
        assert 32 % (p.num_microbatches * p.data_parallel) == 0
        assert p.chunks == 1 or p.num_microbatches % p.stages == 0
    assert len(set(points)) == len(points)


def test_the_grid_is_complete():
    points, _ = megatron_grid(HOST, 4, 16, (1, 2, 4))
    plain = {
        (p.data_parallel, p.tensor_parallel, p.stages, p.num_microbatches)
        for p in points
        if p.chunks == 1 and not p.is_sharded
    }
    expected = {
        (dp, tp, pp, b)
        for pp in (1, 2, 4)
        for dp in (1, 2, 4, 8)
        for tp in (1, 2, 4, 8)
        for b in (1, 2, 4)
        if dp * tp * pp == 8 and 16 % (b * dp) == 0
    }
    assert plain == expected
    assert {p.chunks for p in points if p.stages == 2 and p.num_microbatches == 2} == {1, 2}
    assert all(p.data_parallel > 1 for p in points if p.is_sharded)


def test_what_cannot_be_is_refused_with_a_reason():
    _, refused = megatron_grid(HOST, 6, 4, (1, 3))
    text = {r.label: r.why for r in refused}
    assert text["pp=4"] == "6 layers cannot be divided evenly among 4 stages"
    assert "no number of micro-batches gives 8 replicas whole rows of 4" in text["dp=8 tp=1 pp=1"]
    _, refused = megatron_grid(mw.Cluster.virtual("3x p3.16xlarge"), 12, 12, (1,))
    assert {r.label for r in refused if "neither a part of a host" in r.why} == {"pp=2", "pp=4"}


def test_tensor_parallelism_may_be_kept_small():
    points, _ = megatron_grid(HOST, 4, 16, (2,), largest_tensor_parallel=2)
    assert max(p.tensor_parallel for p in points) == 2


def test_stages_are_equal_parts():
    kinds = [stage_kind(TWO, n) for n in (1, 2, 4, 16)]
    assert [k.shape for k in kinds if k] == [(2, 8), (1, 8), (1, 4), (1, 1)]


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_ends_belong_to_the_first_and_last_chunk(chunks):
    body = Body(first=1, num_layers=8, period=2)
    ranges = chunk_ranges(body, 11, chunks)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 10
    assert all(b[0] == a[1] + 1 for a, b in pairwise(ranges))
    inner = [last - first + 1 for first, last in ranges]
    inner[0] -= 1
    inner[-1] -= 2
    assert inner == [8 // chunks] * chunks
