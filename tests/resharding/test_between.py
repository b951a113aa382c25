"""Ways to send a tensor to another mesh, by hand."""

from __future__ import annotations

import pytest
from evaluation.transfers.ways import SIGNAL, passing

import meshwise as mw
from meshwise.graph.layout import parse_layout
from meshwise.resharding.between import gather_s
from meshwise.resharding.cross_mesh.strategies import GATHERED, SEND_RECV

# 2 hosts of 8 as 2 x 8: axis 1 inside a host.
MESH = mw.Cluster.virtual("2x p3.16xlarge").mesh((2, 8))
SIZE = 1 << 24
NIC = MESH.axes[0].link_bytes_per_s


def sent(way, layout, rate=NIC):
    return passing(way, SIZE, parse_layout(layout), MESH, rate)


def test_tiles_that_are_all_distinct_pass_once_either_way():
    assert sent(SEND_RECV, "S01 R") == sent(GATHERED, "S01 R")
    assert sent(SEND_RECV, "S01 R").crossing_bytes == SIZE
    assert sent(SEND_RECV, "S01 R").gather_s == 0


def test_copies_inside_a_host_are_gathered_there():
    assert sent(SEND_RECV, "S0 R").crossing_bytes == 8 * SIZE
    found = sent(GATHERED, "S0 R")
    link = MESH.axes[1]
    assert found.crossing_bytes == SIZE
    # Each host gathers its half of the tensor along a ring of 8.
    ring_s = 7 * link.latency_s + 7 / 8 * (SIZE / 2) / link.link_bytes_per_s
    assert found.gather_s == pytest.approx(ring_s)


def test_copies_on_two_hosts_are_sent_twice_where_that_is_faster_than_to_gather_them():
    # Eight devices of a host share its NIC, so that axis 0 has an eighth of it for each.
    fast = sent(GATHERED, "R R", rate=100 * NIC)
    slow = sent(GATHERED, "R R", rate=NIC / 100)
    assert sent(SEND_RECV, "R R").crossing_bytes == 16 * SIZE
    assert fast.crossing_bytes == 2 * SIZE
    assert slow.crossing_bytes == SIZE
    assert slow.gather_s > fast.gather_s > 0


@pytest.mark.parametrize("layout", ["R R", "S0 R", "S1 R", "S01 R"])
def test_what_comes_once_is_gathered_whole(layout):
    # Where next to nothing passes in a second, every byte is sent once.
    found = sent(GATHERED, layout, rate=1e-3)
    assert found.crossing_bytes == SIZE
    assert gather_s(SIZE, parse_layout(layout), MESH) == found.gather_s


def test_no_way_is_below_the_signal_or_above_send_recv():
    for layout in ("R R", "S0 R", "S1 R", "S0 S1", "R S10"):
        seconds = [
            p.crossing_bytes / NIC + p.gather_s
            for p in (sent(way, layout) for way in (SIGNAL, GATHERED, SEND_RECV))
        ]
        assert seconds == sorted(seconds), layout


def test_what_is_no_way_or_partial_is_refused():
    with pytest.raises(ValueError, match="no way 'post' to send; there are signal, send/recv"):
        sent("post", "R R")
    with pytest.raises(ValueError, match="partial"):
        sent(SIGNAL, "R R sum:P0")
