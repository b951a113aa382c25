"""Strategies of operators: what follows from a factor rule is true for the numbers.

For each feasible strategy the operands are laid out over the devices as the strategy wants, each
device computes on what it has, and the results must be the whole ones in the layouts promised.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.tiles import assert_is, spread
from meshwise.graph.layout import parse_layout
from meshwise.graph.loops import (
    NONE,
    Loop,
    LoopRule,
    dim_axes,
    enumerate_strategies,
    is_feasible,
    loop_parts,
    operand_layouts,
    passing,
    replicated_rule,
    result_layouts,
)

MESHES = ((2, 4), (2, 2, 2), (8,), (3, 2))

# C[b,i,j] = sum_k A[b,i,k] B[b,k,j]
BATCH, ROW, COLUMN, INNER = range(4)


def batched(b, i, j, k):
    return LoopRule(
        loops=(Loop(b), Loop(i), Loop(j), Loop(k, "sum")),
        operands=(((BATCH,), (ROW,), (INNER,)), ((BATCH,), (INNER,), (COLUMN,))),
        results=(((BATCH,), (ROW,), (COLUMN,)),),
        linear=((0,), (1,)),
    )


@pytest.mark.parametrize(
    ("strategy", "output", "left", "right"),
    [
        ((ROW, COLUMN), "R S0 S1", "R S0 R", "R R S1"),
        ((ROW, INNER), "R S0 R sum:P1", "R S0 S1", "R S1 R"),
        ((COLUMN, INNER), "R R S0 sum:P1", "R R S1", "R S1 S0"),
        ((BATCH, ROW), "S0 S1 R", "S0 S1 R", "S0 R R"),
        ((BATCH, INNER), "S0 R R sum:P1", "S0 R S1", "S0 S1 R"),
        ((ROW, ROW), "R S01 R", "R S01 R", "R R R"),
        ((INNER, INNER), "R R R sum:P01", "R R S01", "R S01 R"),
    ],
)
def test_table_3_of_alpa(strategy, output, left, right):
    rule = batched(8, 8, 8, 8)
    assert operand_layouts(rule, strategy, (2, 4)) == (parse_layout(left), parse_layout(right))
    assert result_layouts(rule, strategy, (2, 4)) == (parse_layout(output),)


@pytest.mark.parametrize(("num_axes", "count"), [(1, 7), (2, 49), (3, 343)])
def test_strategies_of_a_batched_product(num_axes, count):
    found = list(enumerate_strategies(batched(8, 8, 8, 8), (2,) * num_axes))
    assert len(set(found)) == count
    assert found[0] == (NONE,) * num_axes


def test_loops_of_one_trip_and_uneven_splits_are_no_strategies():
    rule = batched(1, 6, 4, 3)
    found = set(enumerate_strategies(rule, (4,)))
    assert found == {(NONE,), (COLUMN,), (passing(0),), (passing(1),)}
    assert not is_feasible(rule, (ROW,), (4,))
    assert is_feasible(rule, (ROW,), (2,))
    assert not is_feasible(rule, (ROW, ROW), (2, 4))


def rule_and_function(kind):
    """A rule, the shapes of its operands, and what it computes."""
    if kind == "dot":
        return batched(2, 8, 4, 6), [(2, 8, 6), (2, 6, 4)], lambda a, b: [np.matmul(a, b)]
    if kind == "add":
        rule = LoopRule((Loop(8), Loop(12)), (((0,), (1,)),) * 2, (((0,), (1,)),), linear=((0, 1),))
        return rule, [(8, 12)] * 2, lambda a, b: [a + b]
    if kind == "multiply":
        # The second operand has one row only.
        rule = LoopRule(
            (Loop(8), Loop(12)), (((0,), (1,)), ((), (1,))), (((0,), (1,)),), linear=((0,), (1,))
        )
        return rule, [(8, 12), (1, 12)], lambda a, b: [a * b]
    if kind in ("sum", "max"):
        rule = LoopRule(
            (Loop(8), Loop(12, kind)),
            (((0,), (1,)),),
            (((0,),),),
            linear=((0,),) if kind == "sum" else (),
        )
        return rule, [(8, 12)], lambda a: [getattr(a, kind)(axis=1)]
    if kind == "two results":
        rule = LoopRule((Loop(8), Loop(6)), (((0,), (1,)),), (((1,), (0,)), ((0,), (1,))))
        return rule, [(8, 6)], lambda a: [a.T, a * a]
    assert kind == "outer"
    rule = LoopRule((Loop(4), Loop(8)), (((0,),), ((1,),)), (((0,), (1,)),), linear=((0,), (1,)))
    return rule, [(4,), (8,)], lambda a, b: [np.outer(a, b)]


@pytest.mark.parametrize("sizes", MESHES)
@pytest.mark.parametrize("kind", ["dot", "add", "multiply", "sum", "max", "two results", "outer"])
def test_every_strategy_computes_the_operator(kind, sizes):
    rng = np.random.default_rng(1)
    rule, shapes, function = rule_and_function(kind)
    operands = [rng.integers(-9, 10, shape) for shape in shapes]
    wholes = function(*operands)
    count = 0
    for strategy in enumerate_strategies(rule, sizes):
        count += 1
        wanted = operand_layouts(rule, strategy, sizes)
        given_out = result_layouts(rule, strategy, sizes)
        values = [spread(x, lay, sizes, rng) for x, lay in zip(operands, wanted, strict=True)]
        computed = {at: function(*(value[at] for value in values)) for at in values[0]}
        for position, (whole, layout) in enumerate(zip(wholes, given_out, strict=True)):
            assert_is({at: c[position] for at, c in computed.items()}, whole, layout, sizes)
    assert count > 1


@settings(max_examples=80, deadline=None)
@given(
    atoms=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
)
def test_every_strategy_of_a_reshape_keeps_blocks(atoms, sizes):
    """Merging dims: the result dim follows all loops of the operand dims, major to minor."""
    rng = np.random.default_rng(2)
    loops = tuple(Loop(n) for n in atoms)
    rule = LoopRule(
        loops,
        (tuple((i,) for i in range(len(atoms))),),
        ((tuple(range(len(atoms))),),),
        linear=((0,),),
    )
    whole = np.arange(math.prod(atoms)).reshape(atoms)
    for strategy in enumerate_strategies(rule, sizes):
        (wanted,) = operand_layouts(rule, strategy, sizes)
        (layout,) = result_layouts(rule, strategy, sizes)
        values = spread(whole, wanted, sizes, rng)
        merged = {at: value.reshape(-1) for at, value in values.items()}
        assert_is(merged, whole.reshape(-1), layout, sizes)


def test_minor_loop_splits_only_below_a_completely_split_major_loop():
    rule = LoopRule((Loop(2), Loop(8)), (((0,), (1,)),), (((0, 1),),))
    assert dim_axes(rule, (1, NONE), (0, 1), (2, 4)) is None
    assert dim_axes(rule, (0, 1), (0, 1), (2, 4)) == (0, 1)
    assert dim_axes(rule, (1, 0), (0, 1), (4, 2)) == (1, 0)
    assert not is_feasible(rule, (1, NONE), (2, 4))
    half = LoopRule((Loop(4), Loop(8)), (((0,), (1,)),), (((0, 1),),))
    assert dim_axes(half, (0, 1), (0, 1), (2, 4)) is None


def test_two_monoids_have_no_common_layout():
    rule = LoopRule((Loop(4, "sum"), Loop(4, "max")), (((0,), (1,)),), ((),))
    assert result_layouts(rule, (0, 1), (2, 2)) is None
    assert result_layouts(rule, (0, NONE), (2, 2)) == (parse_layout("sum:P0"),)
    assert (0, 1) not in set(enumerate_strategies(rule, (2, 2)))


def test_partial_sums_pass_one_group_of_operands():
    rule, _, _ = rule_and_function("add")
    assert [str(x) for x in operand_layouts(rule, (passing(0),), (2,))] == ["R R sum:P0"] * 2
    rule, _, _ = rule_and_function("outer")
    layouts = operand_layouts(rule, (passing(1), 0), (2, 2))
    assert [str(x) for x in layouts] == ["S1", "R sum:P0"]
    assert [str(x) for x in result_layouts(rule, (passing(1), 0), (2, 2))] == ["S1 R sum:P0"]


def test_parts_of_a_loop():
    assert loop_parts((1, 0, 1), 1, (2, 3, 5)) == 10
    assert loop_parts((1, 0, 1), 2, (2, 3, 5)) == 1


def test_unknown_operator_is_whole_everywhere():
    rule = replicated_rule((2, 0), (1,))
    assert list(enumerate_strategies(rule, (2, 4))) == [(NONE, NONE)]
    assert [str(x) for x in operand_layouts(rule, (NONE, NONE), (2, 4))] == ["R R", "-"]
    assert not rule.ruled
    assert rule.whole == "no rule"
