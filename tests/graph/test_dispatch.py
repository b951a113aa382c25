"""Rows that go to the devices of their groups: layouts, rounds, what is sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwise.graph.dispatch import ROUNDS, dispatch_axes, own_groups, round_of, rows_of_pair
from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.layout import Layout
from meshwise.graph.loops import (
    NONE,
    Loop,
    LoopRule,
    enumerate_strategies,
    is_feasible,
    operand_layouts,
    result_layouts,
)
from meshwise.graph.sends import Send, sends, waits_for_all
from meshwise.graph.sent import Dispatch
from meshwise.graph.text import graph_text, parse_graph
from meshwise.graph.turns import expected_turns, turns_scope
from meshwise.rules.narrow import without_sums

# Loops: sequences, columns, width, groups, and that of the dispatch.
SEQUENCES, ROWS, WIDTH, COLUMNS, GROUPS = 8, 64, 4, 16, 4
RULE = LoopRule(
    loops=(
        Loop(SEQUENCES),
        Loop(COLUMNS),
        Loop(WIDTH, "sum"),
        Loop(GROUPS, "sum", block=True),
        Loop(SEQUENCES, block=True),
    ),
    operands=(((0,), (), (2,)), ((3,), (2,), (1,)), ((0,), ())),
    results=(((0,), (), (1,)),),
    dispatch=Dispatch(4, 0, 3, (0,), (0,), ((0, 1), (0, 1))),
)
ALL_ROWS = Tensor(shape=(SEQUENCES, ROWS, WIDTH), dtype="bfloat16", itemsize=2)
MATRICES = Tensor(shape=(GROUPS, WIDTH, COLUMNS), dtype="bfloat16", itemsize=2)
SIZES = Tensor(shape=(SEQUENCES, GROUPS), dtype="int32", itemsize=4)
RESULT = Tensor(shape=(SEQUENCES, ROWS, COLUMNS), dtype="float32", itemsize=4)
OPERANDS = [ALL_ROWS, MATRICES, SIZES]


def test_the_same_axes_split_rows_and_groups_and_results_are_whole_sums() -> None:
    assert operand_layouts(RULE, (4, NONE), (2, 4)) == (
        Layout(((0,), (), ())),
        Layout(((0,), (), ())),
        Layout(((0,), ())),
    )
    assert result_layouts(RULE, (4, NONE), (2, 4)) == (Layout(((0,), (), ())),)
    # Sequences are split further, by axes in the order of the mesh.
    for strategy in ((0, 4), (4, 0)):
        operands = operand_layouts(RULE, strategy, (2, 4))
        assert operands is not None
        assert operands[0].dims[0] == (0, 1)
        assert operands[1].dims[0] == (strategy.index(4),)
    # The width too: then results are partial sums along that axis alone.
    assert result_layouts(RULE, (4, 2), (2, 4)) == (Layout(((0,), (), ()), (1,), "sum"),)


@pytest.mark.parametrize(
    ("sizes", "strategy", "fits"),
    [
        ((4,), (4,), True),
        ((8,), (4,), False),  # four groups
        ((2, 4), (4, 0), True),
        ((4, 4), (4, 0), False),  # eight sequences
        ((2, 2), (4, 3), False),  # groups are split by the dispatch alone
        ((2, 2), (4, 4), True),
        ((2, 2), (4, 1), True),
    ],
)
def test_it_divides_both(sizes: tuple[int, ...], strategy: tuple[int, ...], fits: bool) -> None:
    assert is_feasible(RULE, strategy, sizes) == fits
    assert (strategy in set(enumerate_strategies(RULE, sizes))) == fits


def test_all_rows_go_in_some_rounds_if_pairs_have_as_many() -> None:
    for num_rows, count in ((4096, 8), (100, 3), (1, 8), (5, 2)):
        size = rows_of_pair(num_rows, count)
        assert size >= 1
        assert ROUNDS * count * size >= num_rows
        assert size == 1 or ROUNDS * count * (size - 1) < num_rows


def test_what_is_sent() -> None:
    """How many rows first; then rows, and results that come back, in each round."""
    of_pair = SEQUENCES // 4 * ROWS // (4 * ROUNDS)
    sent = 4 * 4 * of_pair
    assert sends(RULE, (4,), (4,), OPERANDS, [RESULT]) == (
        Send("all-gather", (0,), 4, 4 * GROUPS * 4, 1),
        Send("all-to-all", (0,), 4, sent * WIDTH * 2, ROUNDS),
        Send("all-to-all", (0,), 4, sent * COLUMNS * 4, ROUNDS),
    )
    # With half of the columns, half of the results.
    halved = sends(RULE, (4, 1), (4, 2), OPERANDS, [RESULT])
    assert [x.num_bytes for x in halved[1:]] == [sent * WIDTH * 2, sent * COLUMNS * 4 // 2]
    assert sends(RULE, (0,), (4,), OPERANDS, [RESULT]) == ()
    assert round_of(RULE, (0,), (4,), OPERANDS, [RESULT]) is None


def test_who_waits_and_who_has_what() -> None:
    assert dispatch_axes(RULE, (4, 0), (2, 4)) == (0,)
    assert dispatch_axes(RULE, (4, 0), (1, 4)) == ()
    assert dispatch_axes(replace(RULE, dispatch=None), (4, 0), (2, 4)) == ()
    assert waits_for_all(RULE, (4, 0), (2, 4))
    assert not waits_for_all(RULE, (3, 0), (2, 4))
    assert [own_groups(RULE, s, (2, 2)) for s in ((4, 0), (3, 0), (4, 4), (0, 1))] == [2, 2, 1, 4]


def test_it_is_written_and_read() -> None:
    operator = Operator(
        kind="ragged_dot_general", inputs=(0, 1, 2), outputs=(3,), rule=RULE, flop=1.0, heavy=True
    )
    tensors = (*OPERANDS, RESULT)
    graph = Graph(tensors=tensors, operators=(operator,), inputs=(0, 1, 2), outputs=(3,))
    assert parse_graph(graph_text(graph)) == graph


def test_without_sums_of_parts_no_rows_go_anywhere() -> None:
    rule = without_sums(RULE, "few bits")
    assert rule.dispatch is None
    assert [loop.size for loop in rule.loops] == [SEQUENCES, COLUMNS]


def test_the_name_of_a_loop_says_its_turns() -> None:
    scope = turns_scope(12)
    assert expected_turns(f"jit(step)/{scope}/while") == 12
    assert expected_turns(f"jit(step)/transpose(jvp({scope}))/while") == 12
    assert expected_turns(f"jit(step)/{scope}/while/body/while") is None
