"""Unit tasks and homed tiles against the elements one by one."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.routes import layouts, part
from meshwise.graph.layout import parse_layout
from meshwise.resharding.cross_mesh.unit_tasks import unit_tasks
from meshwise.resharding.once import homed_tiles
from meshwise.resharding.tiles import boxes, cut_box, num_elements

MESHES = ((2, 2), (1, 4), (2, 4), (3, 4))


def holding(shape, layout, sizes, first=0):
    return dict(enumerate(boxes(shape, layout, sizes), first))


def elements(box):
    return itertools.product(*(range(start, stop) for start, stop in box))


def carried_out(whole, tiles):
    """What devices of the destination have in the end, and elements that crossed."""
    values, crossed = {}, 0
    for tile in tiles:
        value = np.full([stop - start for start, stop in tile.box], -1)
        for piece in tile.pieces:
            at = tuple(
                slice(a - first, b - first)
                for (a, b), (first, _) in zip(piece.box, tile.box, strict=True)
            )
            assert (value[at] == -1).all(), "an element comes twice"
            value[at] = part(whole, piece.box)
            crossed += num_elements(piece.box) if piece.sender != tile.home else 0
        for device in (tile.home, *tile.copies, *tile.owners):
            values[device] = value
    return values, crossed


@pytest.mark.parametrize("shape", [(24,), (7,), (12, 8), (5, 6), (4, 3, 5)])
@pytest.mark.parametrize(("sizes", "others"), [*itertools.product(MESHES, MESHES)])
def test_every_element_crosses_once_between_all_pairs_of_layouts(shape, sizes, others):
    whole = np.arange(np.prod(shape)).reshape(shape)
    for before, after in itertools.product(layouts(len(shape), sizes), layouts(len(shape), others)):
        source = holding(shape, before, sizes)
        destination = holding(shape, after, others, first=100)
        tiles = homed_tiles(source, destination)
        values, crossed = carried_out(whole, tiles)
        # Each distinct tile once: never more than the tensor, for layouts are partitions of it.
        assert crossed == whole.size
        assert crossed == sum(num_elements(t.box) for t in unit_tasks(source, destination))
        for device, box in destination.items():
            if num_elements(box):
                assert np.array_equal(values[device], part(whole, box))
            else:
                assert device not in values


@st.composite
def sides(draw):
    shape = draw(st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple))
    found = []
    for _ in range(2):
        sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
        found.append((draw(st.sampled_from(list(layouts(len(shape), sizes)))), sizes))
    return shape, *found, draw(st.integers(0, 20))


@settings(max_examples=60, deadline=None)
@given(sides())
def test_unit_tasks_say_who_has_and_who_needs_each_element(case):
    shape, (before, from_sizes), (after, to_sizes), first = case
    source, destination = (
        holding(shape, before, from_sizes),
        holding(shape, after, to_sizes, first=first),
    )
    seen: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for task in unit_tasks(source, destination):
        assert task.senders
        assert task.receivers
        for element in elements(task.box):
            seen[element, task.receivers] += 1
            has = {d for d, box in source.items() if element in set(elements(box))}
            assert set(task.senders) == has
            for device in task.receivers:
                assert element in set(elements(destination[device]))
    assert set(seen.values()) <= {1}
    wanted = {(e, d) for d, box in destination.items() for e in elements(box)}
    assert {(e, d) for e, who in seen for d in who} == wanted


@settings(max_examples=60, deadline=None)
@given(sides())
def test_devices_on_both_sides_keep_what_they_have(case):
    shape, (before, from_sizes), (after, to_sizes), first = case
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    source = holding(shape, before, from_sizes)
    destination = holding(shape, after, to_sizes, first=first)
    tiles = homed_tiles(source, destination)
    values, crossed = carried_out(whole, tiles)
    assert crossed == sum(tile.crossing_elements for tile in tiles)
    assert crossed <= whole.size
    for tile in tiles:
        for piece in tile.pieces:
            assert source[piece.sender] in (tile.box, source[piece.sender])
            inside = zip(piece.box, source[piece.sender], strict=True)
            assert all(a >= c and b <= d for (a, b), (c, d) in inside)
        assert all(source[d] == tile.box for d in tile.owners)
    for device, box in destination.items():
        if num_elements(box):
            assert np.array_equal(values[device], part(whole, box))
    if (before, from_sizes) == (after, to_sizes) and first == 0:
        assert crossed == 0


def test_work_is_spread_over_senders_and_homes():
    shape = (16, 4)
    source = holding(shape, parse_layout("R R"), (2, 2))
    tiles = homed_tiles(source, holding(shape, parse_layout("S01 R"), (2, 2), first=4))
    assert sorted(p.sender for tile in tiles for p in tile.pieces) == [0, 1, 2, 3]
    tiles = homed_tiles(source, holding(shape, parse_layout("S0 R"), (2, 2), first=4))
    assert len({tile.home for tile in tiles}) == 2


def test_dims_that_do_not_divide_have_a_short_last_tile():
    assert boxes((7,), parse_layout("S0"), (3,)) == (((0, 3),), ((3, 6),), ((6, 7),))
    assert boxes((2,), parse_layout("S0"), (4,)) == (((0, 1),), ((1, 2),), ((2, 2),), ((2, 2),))


@pytest.mark.parametrize("layout", ["R R", "sum:P0"])
def test_what_has_no_tiles_is_refused(layout):
    with pytest.raises(ValueError, match=r"has no tiles of a tensor of shape \[4\]"):
        boxes((4,), parse_layout(layout), (2,))


def test_boxes_are_cut_along_their_longest_dim():
    box = ((0, 2), (10, 18))
    first, second = cut_box(box, [0.3])
    assert (first, second) == (((0, 2), (10, 12)), ((0, 2), (12, 18)))
    assert [num_elements(part) for part in cut_box(((0, 2),), [0.2, 0.4])] == [0, 1, 1]
    assert cut_box((), [0.5]) == ((),)
