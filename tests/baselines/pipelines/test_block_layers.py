"""Where models repeat themselves."""

from __future__ import annotations

import numpy as np
import pytest

from doubles.layered import gpt_layers, moe_layers, perceptron_layers
from meshwise.baselines.pipelines.block_layers import Body, block_ranges, body_of
from meshwise.inter.clustering.operator_chain import OperatorChain


def chain(flop, value_bytes):
    """Each operator reads the one before it."""
    size = len(flop)
    return OperatorChain(
        flop=np.array(flop, np.float64),
        is_heavy=np.array(flop) > 5,
        producer=np.arange(size - 1),
        value_bytes=np.array(value_bytes, np.int64),
        read_value=np.arange(size - 1),
        read_by=np.arange(1, size),
    )


def test_blocks_begin_where_least_crosses():
    # Embedding 3; blocks of 7, 2, 9; a head of 4.
    flop = [3, *([7, 2, 9] * 3), 4]
    crossing = [1, *([5, 8, 1] * 3)]
    assert block_ranges(chain(flop, crossing)) == ((0, 0), (1, 3), (4, 6), (7, 9), (10, 10))


def test_nothing_that_repeats_is_one_layer():
    assert block_ranges(chain([1, 2, 3, 7], [1, 1, 1])) == ((0, 3),)


def test_models_are_cut_into_their_blocks():
    assert gpt_layers(8).classes == (0, 1, 1, 1, 1, 5)
    # A block with experts and one without are one period.
    assert moe_layers(8, num_layers=6).classes == (0, 1, 1, 1, 4)
    # The first block has no gradient to hand back; the loss is the last layer.
    assert perceptron_layers(8, 4, 8).classes == (0, 1, 1, 1, 4)


@pytest.mark.parametrize(
    ("classes", "body"),
    [
        ((0, 1, 1, 1, 1, 5), Body(first=1, num_layers=4, period=1)),
        ((0, 1, 2, 1, 2, 1, 2, 7), Body(first=1, num_layers=6, period=2)),
        ((0, 1, 2), Body(first=0, num_layers=3, period=1)),
        ((0,), Body(first=0, num_layers=1, period=1)),
        ((0, 0, 0), Body(first=0, num_layers=3, period=1)),
    ],
)
def test_the_repeated_part_of_layers(classes, body):
    assert body_of(classes) == body


def test_groups_of_tokens_may_be_longer_than_a_row():
    layers = moe_layers(8, group_size=64)
    assert layers.graph(1, 1, 2).num_microbatches == 2


def test_experts_with_a_balancing_loss_are_cut():
    layers = moe_layers(8, balance=0.01)
    without = moe_layers(8)
    assert len(layers.classes) == len(without.classes)
    for layer in range(len(layers.classes)):
        piece, other = (k.graph(layer, layer, 2) for k in (layers, without))
        # The term is no activation of a micro-batch: it crosses once a step.
        assert [c.num_bytes for c in piece.entering] == [c.num_bytes for c in other.entering]
