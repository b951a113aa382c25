"""Paths and their prices against Alpa table 2 (docs/facts.md), brute force and properties."""

from __future__ import annotations

import dataclasses
import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.tiles import all_layouts
from meshwise.cluster.collectives import collective_time_s
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.errors import PlanError
from meshwise.graph.layout import Layout, is_valid, parse_layout, split_layouts
from meshwise.resharding.moves import FREE, moves
from meshwise.resharding.within import cost_matrix, path

DEVICE = DeviceSpec(
    name="d", memory_bytes=1, memory_bytes_per_s=1.0, flop_per_s=(("float32", 1.0),), source="test"
)
GPU = dataclasses.replace(DEVICE, name="A100")


def make_mesh(sizes, latency_s=1e-6, link_bytes_per_s=1e9):
    return LogicalMesh(
        axes=tuple(
            MeshAxis(
                name=f"a{i}",
                size=n,
                latency_s=latency_s * (i + 1),
                link_bytes_per_s=link_bytes_per_s * 3**i,
            )
            for i, n in enumerate(sizes)
        ),
        device=DEVICE,
    )


MESHES = {sizes: make_mesh(sizes) for sizes in ((2, 4), (2, 2, 2), (4,), (3, 2))}


def summary(steps):
    return [(step.kind, step.axes, step.num_bytes) for step in steps]


M = 16 * 32 * 4
EVEN = LogicalMesh(
    axes=tuple(
        MeshAxis(name=n, size=s, latency_s=0.0, link_bytes_per_s=1e9)
        for n, s in (("x", 2), ("y", 4))
    ),
    device=DEVICE,
)


@pytest.mark.parametrize(
    ("source", "target", "collective"),
    [
        ("R R", "S0 R", []),
        ("R R", "S0 S1", []),
        ("R R", "R S10", []),
        ("S0 R", "R R", [("all-gather", (0,), M)]),
        ("S0 S1", "S0 R", [("all-gather", (1,), M // 2)]),
        ("S0 R", "R S0", [("all-to-all", (0,), M)]),
        ("S0 S1", "S01 R", [("all-to-all", (1,), M // 2)]),
        # Partial sums: the same in the sense of B.
        ("R R sum:P0", "R R", [("all-reduce", (0,), M)]),
        ("R S1 sum:P0", "R S1", [("all-reduce", (0,), M // 4)]),
        ("R S1 sum:P0", "S0 S1", [("reduce-scatter", (0,), M // 4)]),
        ("R S1 sum:P0", "R S10", [("reduce-scatter", (0,), M // 4)]),
        ("R R sum:P01", "R R", [("all-reduce", (0, 1), M)]),
        ("R R max:P01", "R R", [("all-reduce", (0, 1), M)]),
        ("S01 R", "R R", [("all-gather", (0, 1), M)]),
        ("S10 R", "S01 R", [("permute", (1, 0), M)]),
    ],
)
def test_rows_of_the_table(source, target, collective):
    steps = path((16, 32), 4, parse_layout(source), parse_layout(target), EVEN)
    assert [s for s in summary(steps) if s[0] not in ("slice", "mask")] == collective
    assert all(s.num_bytes == 0 for s in steps if s.kind in ("slice", "mask"))
    assert steps[-1].layout == parse_layout(target)


def test_two_latencies_are_avoided_by_one_gather():
    source, target = parse_layout("S01 R"), parse_layout("R R")
    steps = path((16, 32), 4, source, target, MESHES[2, 4])
    assert summary(steps) == [("all-gather", (0, 1), M)]
    assert steps[0].group_size == 8


def test_idle_axes_share_the_work_where_their_links_are_faster():
    steps = path((1024, 1024), 4, parse_layout("S0 R"), parse_layout("R R"), make_mesh((2, 4), 0.0))
    assert [step.kind for step in steps] == ["slice", "all-gather"]


@pytest.mark.parametrize("sizes", [(3, 7), (2, 4), (3, 5), (7,), (6,), (4, 5, 7)])
def test_rounding_does_not_turn_an_all_reduce_into_its_parts(sizes):
    axes = tuple(
        MeshAxis(name=f"a{i}", size=s, latency_s=1e-6, link_bytes_per_s=1e9)
        for i, s in enumerate(sizes)
    )
    mesh = LogicalMesh(axes=axes, device=DEVICE)
    source = Layout(((), ()), tuple(range(len(sizes))), "sum")
    for rows in (1, 3, 11):
        steps = path((840 * rows, 840), 4, source, parse_layout("R R"), mesh)
        assert [step.kind for step in steps] == ["all-reduce"]


def test_gather_of_a_major_axis_reorders_first():
    steps = path((16, 32), 4, parse_layout("S01 R"), parse_layout("S1 R"), MESHES[2, 4])
    assert [s.kind for s in steps] == ["permute", "all-gather"]
    assert str(steps[0].layout) == "S10 R"


def test_divisibility_holds_at_every_step():
    # Dim 1 cannot take axis 1, so axis 1 must leave dim 0 by a gather.
    source, target = parse_layout("S1 R"), parse_layout("R S0")
    steps = path((8, 6), 4, source, target, MESHES[2, 4])
    assert [s.kind for s in steps] == ["all-gather", "slice"] or [s.kind for s in steps] == [
        "slice",
        "all-gather",
    ]
    for step in steps:
        assert is_valid(step.layout, (8, 6), (2, 4))


def test_axes_that_do_not_divide_are_refused():
    with pytest.raises(PlanError, match=r"S1 R is not a layout of a tensor of shape \(6, 8\)"):
        path((6, 8), 4, parse_layout("S1 R"), parse_layout("R R"), MESHES[2, 4])
    with pytest.raises(PlanError, match="R S1 is not a layout"):
        cost_matrix((8, 6), 4, [parse_layout("R R")], [parse_layout("R S1")], MESHES[2, 4])
    with pytest.raises(PlanError, match="S2 R is not a layout"):
        path((8, 8), 4, parse_layout("S2 R"), parse_layout("R R"), MESHES[2, 4])


def test_impossible_paths_are_refused_and_priced_infinite():
    source, target = parse_layout("R sum:P0"), parse_layout("R max:P0")
    with pytest.raises(PlanError, match=r"no resharding leads from R sum:P0 to R max:P0"):
        path((8,), 4, source, target, MESHES[2, 4])
    assert cost_matrix((8,), 4, [source], [target], MESHES[2, 4])[0, 0] == math.inf
    source, target = parse_layout("S0"), parse_layout("R")
    gathers = frozenset({"all-gather", "all-to-all", "all-reduce"})
    found = cost_matrix((7 * 2,), 4, [source], [target], make_mesh((2,)), forbid=gathers)
    assert found[0, 0] == math.inf


def test_equal_layouts_need_no_step():
    for layout in all_layouts((8, 4), (2, 4), ("sum", "max")):
        assert path((8, 4), 4, layout, layout, MESHES[2, 4]) == ()


def test_paths_are_equal_in_every_call():
    layouts = list(split_layouts((8, 8), (2, 2, 2)))
    first = [path((8, 8), 4, a, b, MESHES[2, 2, 2]) for a in layouts for b in layouts]
    again = [path((8, 8), 4, a, b, make_mesh((2, 2, 2))) for a in layouts for b in layouts]
    assert first == again


def ring_s(kind, axes, num_bytes, mesh, sharers):
    """docs/facts.md section 1 written a second time: axis after axis, or one ring.

    With sharers each ring has its share of the latency of a bucket of 30 MiB.
    """
    ways = [ring_way_s(kind, axes, num_bytes, mesh, lambda latency_s: latency_s)]
    if sharers and kind not in ("all-to-all", "permute"):
        share = 1 / sharers + num_bytes / (30 * 2**20)
        ways.append(ring_way_s(kind, axes, num_bytes, mesh, lambda latency_s: latency_s * share))
    return min(ways)


def ring_way_s(kind, axes, num_bytes, mesh, share):
    def one(n, latency_s, bandwidth, size):
        if n == 1:
            return 0.0
        latency_s = share(latency_s)
        return {
            "all-gather": (n - 1) * latency_s + (n - 1) / n * size / bandwidth,
            "reduce-scatter": (n - 1) * latency_s + (n - 1) / n * size / bandwidth,
            "all-reduce": 2 * (n - 1) * latency_s + 2 * (n - 1) / n * size / bandwidth,
            "all-to-all": (n - 1) * latency_s + (n - 1) / n**2 * size / bandwidth,
            "permute": latency_s + size / (n * bandwidth),
        }[kind]

    group = sorted((mesh.axes[a] for a in axes), key=lambda a: -a.link_bytes_per_s)
    n = math.prod(a.size for a in group)
    flat = one(n, max(a.latency_s for a in group), group[-1].link_bytes_per_s, num_bytes)
    if kind == "permute" or len(group) == 1:
        return flat
    by_axis, left = 0.0, float(num_bytes)
    for axis in group:
        by_axis += one(axis.size, axis.latency_s, axis.link_bytes_per_s, left)
        left /= axis.size
    return min(flat, by_axis)


def brute_force(shape, itemsize, source, mesh, forbid, sharers):
    """Textbook Dijkstra over layouts, with prices computed from the tiles themselves."""
    best, queue, tick = {}, [(0.0, 0, source)], 0
    while queue:
        cost, _, layout = heapq.heappop(queue)
        if layout in best:
            continue
        best[layout] = cost
        for move in moves(layout, shape, mesh.sizes):
            if move.kind in forbid:
                continue
            others = [a for dim in layout.dims for a in dim if a not in move.axes]
            whole = math.prod(shape) * itemsize / math.prod(mesh.sizes[a] for a in others)
            free = move.kind in ("slice", "mask")
            price = 0.0 if free else ring_s(move.kind, move.axes, whole, mesh, sharers)
            tick += 1
            heapq.heappush(queue, (cost + price, tick, move.layout))
    return best


@pytest.mark.parametrize("forbid", [frozenset(), frozenset({"all-gather", "all-to-all"})])
@pytest.mark.parametrize(
    ("sizes", "shape", "itemsize"),
    [((2, 4), (16, 8), 4), ((2, 2, 2), (4, 8), 2), ((3, 2), (6, 12, 5), 8), ((4,), (4, 2), 4)],
)
@pytest.mark.parametrize("sharers", [0, 5])
def test_prices_equal_brute_force_and_paths_equal_prices(sizes, shape, itemsize, forbid, sharers):
    mesh = dataclasses.replace(MESHES[sizes], device=GPU)
    layouts = list(all_layouts(shape, sizes, ("sum", "max")))
    matrix = cost_matrix(shape, itemsize, layouts, layouts, mesh, forbid=forbid, sharers=sharers)
    for row, source in enumerate(layouts):
        best = brute_force(shape, itemsize, source, mesh, forbid, sharers)
        for column, target in enumerate(layouts):
            assert matrix[row, column] == pytest.approx(best.get(target, math.inf), rel=1e-9)
            if math.isfinite(matrix[row, column]) and not forbid:
                steps = path(shape, itemsize, source, target, mesh, sharers=sharers)
                seconds = sum(
                    collective_time_s(step.kind, step.axes, step.num_bytes, mesh, sharers=sharers)
                    for step in steps
                    if step.kind not in FREE
                )
                assert seconds == pytest.approx(matrix[row, column], rel=1e-11)
                assert (steps[-1].layout if steps else source) == target


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.sampled_from(sorted(MESHES)),
    shape=st.lists(st.integers(1, 16), min_size=0, max_size=3).map(tuple),
    scale=st.integers(1, 10**6),
    data=st.data(),
)
def test_prices_are_a_metric_that_grows_with_the_bytes(sizes, shape, scale, data):
    mesh = MESHES[sizes]
    layouts = list(all_layouts(shape, sizes))
    chosen = data.draw(
        st.lists(st.sampled_from(layouts), min_size=3, max_size=12, unique=True)
        if len(layouts) >= 3
        else st.just(layouts)
    )
    small = cost_matrix(shape, 4, chosen, chosen, mesh)
    large = cost_matrix(shape, 4 * scale, chosen, chosen, mesh)
    assert np.all(np.diag(small) == 0.0)
    assert np.all(np.isfinite(small))
    assert np.all(small <= large)
    through = (small[:, :, None] + small[None, :, :]).min(axis=1)
    assert np.all(small <= through * (1 + 1e-12))


def test_matrix_is_ordered_as_asked():
    sources = [parse_layout("S0 R"), parse_layout("R R")]
    targets = [parse_layout("R R"), parse_layout("S0 R"), parse_layout("R S0")]
    matrix = cost_matrix((8, 8), 4, sources, targets, MESHES[2, 4])
    assert matrix.shape == (2, 3)
    assert (matrix > 0).tolist() == [[True, False, True], [False, False, False]]
