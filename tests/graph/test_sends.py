"""What operators send: blocks that go round a ring, beside the edges of `test_halo`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwise.cluster.spec import ClusterSpec
from meshwise.graph.graph import Graph, Operator, Scratch, Tensor
from meshwise.graph.layout import Layout
from meshwise.graph.loops import (
    NONE,
    Loop,
    LoopRule,
    divides,
    enumerate_strategies,
    operand_layouts,
    result_layouts,
)
from meshwise.graph.sends import Send, ring_axes, ring_share, sends, takes_halves
from meshwise.graph.sent import Ring
from meshwise.graph.text import graph_text, parse_graph
from meshwise.intra.price import step_time_s
from meshwise.plan.counts.walk import computes_hidden_scores
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use

# Rows and keys of one head: loop 0 goes round, loop 1 splits rows alone and reduces what keys get.
ROWS, KEYS, FEATURES = 8, 16, 4
FORWARD = LoopRule(
    loops=(Loop(ROWS, block=True), Loop(ROWS, block=True)),
    operands=(((0, 1), ()), ((0,), ())),
    results=(((0, 1), ()),),
    ring=Ring(0, 1, KEYS, (1,)),
)
BACKWARD = replace(
    FORWARD,
    loops=(Loop(ROWS, block=True), Loop(ROWS, "sum", block=True)),
    results=(((0, 1), ()), ((0,), ())),
    ring=Ring(0, 1, KEYS, (1,), (1,)),
)
QUERIES = Tensor(shape=(ROWS, FEATURES), dtype="float32", itemsize=4)
KEY_ROWS = Tensor(shape=(KEYS, FEATURES), dtype="bfloat16", itemsize=2)
GRADIENT = Tensor(shape=(KEYS, FEATURES), dtype="float32", itemsize=4)


def test_operands_go_round_until_each_was_everywhere_and_results_until_they_are_home() -> None:
    of_keys, of_gradients = KEYS * FEATURES * 2, KEYS * FEATURES * 4
    assert sends(FORWARD, (0,), (4,), [QUERIES, KEY_ROWS], [QUERIES]) == (
        Send("permute", (0,), 4, of_keys, 3, in_turns=True),
    )
    assert sends(BACKWARD, (0,), (4,), [QUERIES, KEY_ROWS], [QUERIES, GRADIENT]) == (
        Send("permute", (0,), 4, of_keys, 3, in_turns=True),
        Send("permute", (0,), 4, of_gradients, 4, in_turns=True),
    )


HALVED = replace(FORWARD, ring=Ring(0, 1, KEYS, (1,), halved_operands=(0, 1), halved_results=(0,)))


def test_halves_are_exchanged_before_and_after() -> None:
    """In units of one device's half; of two devices each keeps one of its halves."""
    of_rows, of_keys = ROWS * FEATURES * 4, KEYS * FEATURES * 2
    for count, times in ((2, 1), (4, 2)):
        found = sends(HALVED, (0,), (count,), [QUERIES, KEY_ROWS], [QUERIES])
        halves = [of_rows // 2, of_keys // 2, of_rows // 2]
        assert found == (
            Send("permute", (0,), count, of_keys, count - 1, in_turns=True),
            *(Send("permute", (0,), count, num_bytes, times) for num_bytes in halves),
        )


@pytest.mark.parametrize(
    ("sizes", "strategy", "share"),
    [
        ((2,), (0,), 5 / 8),
        ((4,), (0,), 9 / 16),
        ((2, 2), (0, 0), 9 / 16),
        ((2, 2), (0, NONE), 5 / 8),
        ((2, 2), (0, 1), 1.0),  # rows are split further
        ((8,), (0,), 1.0),  # a block of one row has no halves
        ((4,), (1,), 1.0),  # no ring
    ],
)
def test_with_halves_a_device_does_about_half_of_its_share(
    sizes: tuple[int, ...], strategy: tuple[int, ...], share: float
) -> None:
    assert ring_share(HALVED, strategy, sizes) == share
    assert takes_halves(HALVED, strategy, sizes) == (share < 1)
    assert ring_share(FORWARD, strategy, sizes) == 1


@pytest.mark.parametrize(
    ("sizes", "strategy", "chunk", "share"),
    [
        ((2,), (NONE,), 16, 10 / 16),  # four blocks: 4 + 3 + 2 + 1 of 16 pairs
        ((2,), (NONE,), 24, 10 / 16),
        ((2,), (NONE,), 1, 17 / 32),  # sixteen query blocks at most
        ((2,), (NONE,), 64, 1.0),
        ((2,), (0,), 16, 10 / 16),
        ((2,), (0,), 8, 9 / 16),  # 10 of 16 pairs of its own, and two pairs of halves of four
        ((4,), (0,), 8, 9 / 16),
        ((4,), (0,), 4, 17 / 32),
        ((2, 2), (0, NONE), 8, 9 / 16),
        ((2,), (1,), 16, 1.0),  # rows are split, keys are not
        ((2, 2), (0, 1), 8, 1.0),
    ],
)
def test_of_its_own_blocks_a_device_leaves_out_what_the_mask_hides(
    sizes: tuple[int, ...], strategy: tuple[int, ...], chunk: int, share: float
) -> None:
    ring = Ring(0, 1, 64, (1,), halved_operands=(0, 1), halved_results=(0,), chunk=chunk)
    rule = replace(FORWARD, loops=(Loop(64, block=True),) * 2, ring=ring)
    assert ring_share(rule, strategy, sizes) == share
    assert ring_share(replace(rule, ring=Ring(0, 1, 64, (1,))), strategy, sizes) == 1


def test_rows_are_split_by_both_loops_and_keys_by_the_ring_alone() -> None:
    assert operand_layouts(BACKWARD, (0, 1), (2, 4)) == (
        Layout(((0, 1), ())),
        Layout(((0,), ())),
    )
    # The ring is the major one, whatever the order of the axes.
    assert operand_layouts(BACKWARD, (1, 0), (2, 4)) == (
        Layout(((1, 0), ())),
        Layout(((1,), ())),
    )
    assert result_layouts(BACKWARD, (0, 1), (2, 4)) == (
        Layout(((0, 1), ())),
        Layout(((0,), ()), (1,), "sum"),
    )


@pytest.mark.parametrize(
    ("sizes", "strategy", "rows", "keys", "fits"),
    [
        ((4,), (0,), 8, 16, True),
        ((4,), (0,), 6, 16, False),
        ((4,), (0,), 8, 10, False),
        ((4,), (1,), 8, 10, True),
        ((2, 4), (0, 1), 8, 10, True),
        ((4, 4), (0, 1), 8, 16, False),
    ],
)
def test_blocks_are_even(
    sizes: tuple[int, ...], strategy: tuple[int, ...], rows: int, keys: int, fits: bool
) -> None:
    rule = replace(
        FORWARD,
        loops=(Loop(rows, block=True),) * 2,
        ring=Ring(0, 1, keys, (1,)),
    )
    assert divides(rule, strategy, sizes) is fits


def test_axes_of_one_device_send_nothing() -> None:
    assert ring_axes(FORWARD, (0, NONE), (1, 4)) == ()
    assert sends(FORWARD, (0, NONE), (1, 4), [QUERIES, KEY_ROWS], [QUERIES]) == ()
    assert all(len(s) == 2 for s in enumerate_strategies(FORWARD, (2, 4)))


def _graph(flop: float, rule: LoopRule = FORWARD) -> Graph:
    scratch = Scratch(num_bytes=64.0, share=0.5, traffic_bytes=256.0)
    operator = Operator(
        kind="attention",
        inputs=(0, 1),
        outputs=(2,),
        rule=rule,
        flop=flop,
        heavy=True,
        scratch=scratch,
    )
    return Graph(
        tensors=(QUERIES, KEY_ROWS, QUERIES), operators=(operator,), inputs=(0, 1), outputs=(2,)
    )


@pytest.mark.parametrize(
    ("strategy", "chunk", "hidden"),
    [((NONE,), 16, False), ((0,), 16, False), ((1,), 16, True), ((1,), 64, False)],
    ids=["whole", "a ring", "rows are split", "one chunk"],
)
def test_hidden_scores_are_those_that_one_device_would_leave_out(
    strategy: tuple[int, ...], chunk: int, *, hidden: bool
) -> None:
    ring = Ring(0, 1, 64, (1,), halved_operands=(0, 1), halved_results=(0,), chunk=chunk)
    rule = replace(FORWARD, loops=(Loop(64, block=True),) * 2, ring=ring)
    whole = Layout(((), ()))
    use = Use(group=0, via=whole, layout=whole)
    decided = OperatorDecision(strategy=strategy, uses=(use, use), results=(whole,))
    decision = GraphDecision(inputs=(whole, whole), operators=(decided,), outputs=(use,))
    assert computes_hidden_scores(_graph(1.0, rule), decision, (2,)) is hidden
    # Without a mask nothing is hidden.
    assert not computes_hidden_scores(_graph(1.0), decision, (2,))


@pytest.mark.parametrize("rule", [FORWARD, HALVED], ids=["whole", "halves"])
def test_a_graph_with_a_ring_is_read_back(rule: LoopRule) -> None:
    graph = _graph(1024.0, rule)
    assert parse_graph(graph_text(graph)) == graph


def test_a_ring_passes_while_gpus_compute_and_after_cpus_did() -> None:
    """Three turns of sending stand beside four of computing, which last longer here."""
    split = Layout(((0,), ()))
    use = Use(group=0, via=split, layout=split)
    decided = OperatorDecision(strategy=(0,), uses=(use, use), results=(split,))
    decision = GraphDecision(inputs=(split, split), operators=(decided,), outputs=(use,))
    gpus = ClusterSpec.virtual("1x p3.16xlarge").mesh((8,))
    gpus = replace(gpus, axes=(replace(gpus.axes[0], size=4),))
    others = replace(gpus, device=replace(gpus.device, name="a processor"))
    long, none = _graph(1e12), _graph(0.0)
    hidden_s = step_time_s(long, decision, others) - step_time_s(long, decision, gpus)
    sent_s = step_time_s(none, decision, others)
    assert 0.5 * sent_s < hidden_s <= sent_s
