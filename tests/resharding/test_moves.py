"""The single steps: what they mean for the tiles on the devices, and that only legal ones exist.

The meaning is checked on numbers: each device's tile is computed from the layout alone, the step
is carried out inside its groups only, and the result must be what the new layout says.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.tiles import all_layouts, assert_is, group_of, spread, tile
from meshwise.graph.layout import Layout, is_valid, parse_layout, replicated
from meshwise.resharding.moves import moves

MESHES = ((2, 4), (2, 2, 2), (3, 2), (8,))


def carry_out(values, move, before, whole, sizes):
    """The step, on the values of all devices; each device looks into its own group only."""
    after = {}
    for at in values:
        group = group_of(at, move.axes, sizes)
        rank = group.index(at)
        mine = [values[member] for member in group]
        match move.kind:
            case "all-gather":
                after[at] = np.concatenate(mine, axis=move.dim)
            case "all-reduce":
                after[at] = sum(mine)
            case "reduce-scatter":
                after[at] = np.split(sum(mine), len(group), axis=move.dim)[rank]
            case "all-to-all":
                parts = [np.split(value, len(group), axis=move.to_dim)[rank] for value in mine]
                after[at] = np.concatenate(parts, axis=move.dim)
            case "slice":
                after[at] = np.split(values[at], len(group), axis=move.dim)[rank]
            case "mask":
                after[at] = values[at] * (rank == 0)
            case "permute":
                split_only = Layout(before.dims), Layout(move.layout.dims)
                wanted = tile(whole, split_only[1], sizes, at)
                holders = [
                    m for m in group if np.array_equal(tile(whole, split_only[0], sizes, m), wanted)
                ]
                assert len(holders) == 1, "the wanted tile lies outside of the group"
                after[at] = values[holders[0]]
    return after


def reachable(shape, sizes):
    found, queue = set(), [replicated(len(shape))]
    while queue:
        layout = queue.pop()
        if layout not in found:
            found.add(layout)
            queue += [move.layout for move in moves(layout, shape, sizes)]
    return sorted(found)


@pytest.mark.parametrize("sizes", MESHES)
@pytest.mark.parametrize("shape", [(24, 8), (8, 3, 16), (6,)])
def test_every_move_does_to_the_tiles_what_its_layout_says(sizes, shape):
    rng = np.random.default_rng(0)
    whole = np.arange(math.prod(shape)).reshape(shape)
    kinds = set()
    for before in reachable(shape, sizes):
        values = spread(whole, before, sizes, rng)
        for move in moves(before, shape, sizes):
            kinds.add(move.kind)
            after = carry_out(values, move, before, whole, sizes)
            assert_is(after, whole, move.layout, sizes)
    wanted = {"slice", "mask", "all-reduce", "reduce-scatter", "all-gather"}
    assert wanted <= kinds or shape == (6,)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    shape=st.lists(st.integers(1, 12), min_size=0, max_size=3).map(tuple),
)
def test_all_reachable_layouts_are_valid_and_all_valid_ones_are_reached(sizes, shape):
    found = set(reachable(shape, sizes))
    assert all(is_valid(layout, shape, sizes) for layout in found)
    assert found == set(all_layouts(shape, sizes))


def test_only_sums_are_scattered_and_masked():
    before = parse_layout("R R max:P0")
    kinds = {move.kind for move in moves(before, (8, 8), (2, 4))}
    assert kinds == {"slice", "all-reduce"}
    reduced = [move for move in moves(before, (8, 8), (2, 4)) if move.kind == "all-reduce"]
    assert [(move.monoid, str(move.layout)) for move in reduced] == [("max", "R R")]


def test_sum_may_become_partial_along_more_axes():
    layouts = {
        str(m.layout) for m in moves(parse_layout("R sum:P0"), (8,), (2, 4)) if m.kind == "mask"
    }
    assert layouts == {"R sum:P01"}


def test_group_of_a_reorder_are_the_axes_along_which_tiles_move():
    found = {
        str(m.layout): m.axes
        for m in moves(parse_layout("S012"), (8,), (2, 2, 2))
        if m.kind == "permute"
    }
    assert found == {
        "S021": (1, 2),
        "S102": (0, 1),
        "S120": (0, 1, 2),
        "S201": (0, 1, 2),
        "S210": (0, 2),
    }
