"""Layouts: text, validity, sizes of tiles."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.tiles import all_layouts
from meshwise.graph.layout import (
    MONOIDS,
    Layout,
    is_valid,
    local_shape,
    num_parts,
    parse_layout,
    replicated,
    shift_in,
    split_layouts,
    used_axes,
    without_partial,
)

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
SHAPE = st.lists(st.integers(1, 12), min_size=0, max_size=3).map(tuple)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(((0,), ())), "S0 R"),
        (Layout(((), (1, 0)), (2,), "sum"), "R S10 sum:P2"),
        (Layout((), (0, 1), "max"), "max:P01"),
        (Layout(()), "-"),
    ],
)
def test_text_of_layouts(layout, text):
    assert str(layout) == text
    assert parse_layout(text) == layout


@given(sizes=SIZES, shape=SHAPE)
def test_text_reads_back_equal_and_tells_layouts_apart(sizes, shape):
    layouts = list(all_layouts(shape, sizes, MONOIDS))
    texts = [str(layout) for layout in layouts]
    assert [parse_layout(text) for text in texts] == layouts
    assert len(set(texts)) == len(layouts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "S",
        "X0",
        "S0R",
        "R  R",
        " R",
        "R sum:P",
        "R total:P0",
        "R sum:P10",
        "R sum:P00",
        "sum:P0 R",
        "Sx",
        "- R",
        "R -",
        "S0 R via R",
        "Rx",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="not a layout|invalid literal"):
        parse_layout(text)


def test_valid_layouts_use_each_axis_once_and_divide_evenly():
    assert is_valid(Layout(((0,), (1,))), (2, 8), (2, 4))
    assert is_valid(Layout(((1, 0), ())), (8, 3), (2, 4))
    assert not is_valid(Layout(((0,), (0,))), (2, 8), (2, 4))
    assert not is_valid(Layout(((0,), ()), (0,), "sum"), (2, 8), (2, 4))
    assert not is_valid(Layout(((1,), ())), (2, 8), (2, 4))
    assert not is_valid(Layout(((1, 0), ())), (4, 8), (2, 4))
    assert not is_valid(Layout(((0,),)), (2, 8), (2, 4))
    assert not is_valid(Layout(((2,), ())), (2, 8), (2, 4))
    assert not is_valid(Layout(((-1,), ())), (4, 8), (2, 4))


def test_partial_axes_are_ascending_and_have_a_monoid():
    assert is_valid(Layout(((),), (0, 1), "max"), (3,), (2, 4))
    assert not is_valid(Layout(((),), (1, 0), "max"), (3,), (2, 4))
    assert not is_valid(Layout(((),), (0,)), (3,), (2, 4))
    assert not is_valid(Layout(((),), (), "sum"), (3,), (2, 4))
    assert not is_valid(Layout(((),), (0,), "mean"), (3,), (2, 4))


@given(sizes=SIZES, shape=SHAPE)
def test_tiles_of_all_parts_make_the_whole(sizes, shape):
    for layout in all_layouts(shape, sizes):
        tile = local_shape(shape, layout, sizes)
        assert math.prod(tile) * num_parts(layout, sizes) == math.prod(shape)
        assert used_axes(layout) == tuple(sorted(set(used_axes(layout))))
        whole = without_partial(layout)
        assert whole.dims == layout.dims
        assert not whole.partial
        assert is_valid(whole, shape, sizes)


@given(sizes=SIZES, shape=SHAPE)
def test_split_layouts_are_all_of_ascending_order_replicated_first(sizes, shape):
    found = list(split_layouts(shape, sizes))
    wanted = {
        layout
        for layout in all_layouts(shape, sizes)
        if not layout.partial and all(list(axes) == sorted(axes) for axes in layout.dims)
    }
    assert found[0] == replicated(len(shape))
    assert set(found) == wanted
    assert len(found) == len(wanted)


def test_number_of_split_layouts_on_dims_that_everything_divides():
    for rank, num_axes in itertools.product(range(4), range(1, 4)):
        found = list(split_layouts((8,) * rank, (2,) * num_axes))
        assert len(found) == (rank + 1) ** num_axes


@given(sizes=SIZES, shape=SHAPE)
def test_a_stack_lies_as_its_slices(sizes, shape):
    for layout in all_layouts(shape, sizes, ("sum", "max")):
        stacked = shift_in(layout)
        assert is_valid(stacked, (5, *shape), sizes)
        assert local_shape((5, *shape), stacked, sizes) == (5, *local_shape(shape, layout, sizes))
        assert Layout(stacked.dims[1:], stacked.partial, stacked.monoid) == layout
