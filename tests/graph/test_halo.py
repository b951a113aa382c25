"""Edges of neighbouring blocks: which permutes, how many elements, when they fit."""

from __future__ import annotations

import pytest

from meshwise.graph.halo import edge_elements, edges, extended_shape
from meshwise.graph.loops import NONE, Loop, LoopRule, enumerate_strategies, is_feasible
from meshwise.graph.sent import Halo

# Rows and columns of an image of 16 x 8 with 3 channels, windows of 5 x 3.
RULE = LoopRule(
    loops=(Loop(16, block=True), Loop(8, block=True)),
    operands=(((0,), (1,), ()),),
    results=(((0,), (1,), ()),),
    halos=(Halo(0, 0, 16, 2, 2), Halo(0, 1, 8, 1, 0)),
)
SHAPES = ((16, 8, 3),)


def test_a_loop_that_is_whole_needs_no_edges() -> None:
    assert list(edges(RULE, (NONE, NONE), (2, 4))) == []
    assert list(edges(RULE, (0, NONE), (1, 8))) == []


def test_edges_of_the_second_dim_bring_the_corners() -> None:
    found = [
        (edge.halo.dim, edge.axes, edge.group_size, edge.from_before, elements)
        for edge, elements in edge_elements(RULE, (0, 1), (2, 4), SHAPES)
    ]
    # Blocks of 8 x 2 x 3; two rows up and down, then one column of 8 + 2 + 2 rows.
    assert found == [
        (0, (0,), 2, True, 2 * 2 * 3),
        (0, (0,), 2, False, 2 * 2 * 3),
        (1, (1,), 4, True, 12 * 1 * 3),
    ]
    assert extended_shape(RULE, (0, 1), (2, 4), 0, SHAPES[0]) == (12, 3, 3)


def test_several_axes_are_one_group_and_those_of_one_device_none() -> None:
    (low, high) = edges(RULE, (0, 0, 0), (2, 1, 4))
    assert low.axes == high.axes == (0, 2)
    assert low.group_size == 8
    assert (low.from_before, high.from_before) == (True, False)


@pytest.mark.parametrize(("size", "feasible"), [(2, True), (8, True), (16, False), (3, False)])
def test_blocks_are_equal_and_not_shorter_than_their_edges(size: int, feasible: bool) -> None:
    assert is_feasible(RULE, (0,), (size,)) is feasible


def test_an_operand_that_is_not_cut_evenly_is_whole() -> None:
    # Eight windows of an operand of 20 elements.
    rule = LoopRule((Loop(8, block=True),), (((0,),),), (((0,),),), halos=(Halo(0, 0, 20, 0, 0),))
    assert list(enumerate_strategies(rule, (8,))) == [(NONE,)]
    assert list(enumerate_strategies(rule, (4,))) == [(NONE,), (0,)]
