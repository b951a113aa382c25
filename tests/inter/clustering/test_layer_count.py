"""How many layers a chain is cut into."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwise.inter.clustering.layer_count import (
    clustered,
    has_bypass,
    layers_for,
    regular_layers,
)
from meshwise.inter.clustering.operator_chain import OperatorChain


def chain_of(blocks):
    """A chain of blocks, each (operators, FLOP), whose last operator reads what entered."""
    flop = np.concatenate([np.full(count, total / count) for count, total in blocks])
    ends = np.cumsum([count for count, _ in blocks]) - 1
    num_bytes = np.full(len(flop) - 1, 8)
    num_bytes[ends[:-1]] = 1
    return OperatorChain(
        flop=flop,
        is_heavy=np.ones(len(flop), bool),
        producer=np.arange(len(flop) - 1),
        value_bytes=num_bytes,
        read_value=np.concatenate([np.arange(len(flop) - 1), ends[:-1]]),
        read_by=np.concatenate([np.arange(1, len(flop)), ends[1:]]),
    )


def test_groups_of_blocks_are_not_long_layers():
    """As in a Wide-ResNet: groups of blocks, each with another first one, the third the longest."""
    blocks = [(20, 2e8)]
    for flop, count in zip((1e9, 0.98e9, 0.97e9, 0.96e9), (3, 4, 23, 3), strict=True):
        blocks += [(80, 1.4 * flop), *[(60, flop)] * (count - 1)]
    chain = chain_of([*blocks, (20, 1e8)])
    found = regular_layers(chain, most=40)
    # Eleven layers are of five kinds, but most of these hold three blocks.
    assert len(found.ranges) >= len(blocks)
    assert not has_bypass(chain, found)
    assert any(has_bypass(chain, clustered(chain, count)) for count in range(36, 41))


def test_blocks_are_not_cut_to_be_more_even():
    """As in a Wide-ResNet: early cuts let most bytes pass, later ones may let two values pass."""
    bytes_of = [8, 8, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2]
    values, flop = [], []
    for block, size in enumerate(bytes_of):
        # The first block of a group does more.
        more = 1.4 if block in (2, 6) else 1.0
        flop += [1e9 * more] * 4
        start = 4 * block
        # The last operator adds what entered.
        values += [(start + k, size, [start + k + 1]) for k in range(3)]
        if block:
            values.append((start - 1, bytes_of[block - 1], [start, start + 3]))
    chain = OperatorChain(
        flop=np.array(flop),
        is_heavy=np.ones(len(flop), bool),
        producer=np.array([producer for producer, _, _ in values]),
        value_bytes=np.array([size for _, size, _ in values]),
        read_value=np.array([n for n, (_, _, readers) in enumerate(values) for _ in readers]),
        read_by=np.array([r for _, _, readers in values for r in readers]),
    )
    found = regular_layers(chain, most=14)
    even = clustered(chain, len(found.ranges))
    # A block that does more may be two layers, but no layer has parts of two blocks.
    assert len(found.ranges) >= len(bytes_of)
    blocks = set(range(0, len(flop), 4))
    assert blocks <= {first for first, _ in found.ranges}
    assert not blocks <= {first for first, _ in even.ranges}
    assert found.num_received < even.num_received


@pytest.mark.parametrize("size", [2, 6, 20])
def test_blocks_are_not_cut_where_far_more_passes(size):
    """As in a mixture of experts, whose tokens lie once for each expert inside of a block."""
    chain = chain_of([(size, 1e9)] * 8)
    halves = clustered(chain, 16)
    assert halves.worst_received_bytes >= 8
    found = regular_layers(chain, most=16)
    assert len(found.ranges) == 8
    assert found.worst_received_bytes <= 2


def test_each_of_many_blocks_is_a_layer():
    """So that stages of a few blocks each can be even, as on thousands of devices."""
    found = regular_layers(chain_of([(4, 1e9)] * 100))
    assert found.ranges == tuple((first, first + 3) for first in range(0, 400, 4))


def test_blocks_stay_whole_where_what_follows_them_is_short():
    """So that stages of equally many blocks are equal; half a block at each end is more even.

    Between attention and perceptron of a block as little passes as between blocks.
    """
    halves = [(4, 8e8), (2, 2e8)] * 12
    chain = chain_of([*halves, (3, 3e8)])
    found = regular_layers(chain, most=13)
    assert len(found.ranges) == 13
    assert found.ranges == (*((k, k + 5) for k in range(0, 72, 6)), (72, 74))
    even = clustered(chain, 13)
    assert max(even.flop) - min(even.flop) < max(found.flop) - min(found.flop)


@pytest.mark.parametrize(
    "blocks",
    [
        [(2, 5.0), *((5, 4.0 + 0.07 * k) for k in range(10)), (3, 30.0)],
        [*[(4, 4.0)] * 5, *[(4, 10.0)] * 5, (1, 30.0)],
        [*[(3, 4.0), (2, 10.0), (2, 10.0)] * 3, (3, 1.0)],
    ],
)
def test_no_layer_grows_so_that_others_are_equal(blocks):
    chain = chain_of([(count, flop * 1e8) for count, flop in blocks])
    found = regular_layers(chain)
    even = clustered(chain, len(found.ranges))
    assert max(found.flop) <= 1.3 * max(even.flop)


def test_a_value_goes_past_no_layer_of_many():
    """As what an encoder makes, which only one half of each block of the decoder reads."""
    chain = chain_of([(4, 1e9)] * 100)
    readers = np.arange(6, 400, 8)
    past = replace(
        chain,
        read_value=np.concatenate([chain.read_value, np.zeros(len(readers), int)]),
        read_by=np.concatenate([chain.read_by, readers]),
    )
    assert has_bypass(past, clustered(past, 100))
    found = regular_layers(past)
    assert len(found.ranges) == 50
    assert not has_bypass(past, found)


def test_there_are_as_many_layers_as_stages_where_each_has_a_heavy_operator():
    """Two products of unequal size, after which few bytes pass: no two layers that repeat."""
    chain = replace(
        chain_of([(1, 1e6)] * 5),
        flop=np.array([6e6, 1.0, 1e6, 1.0, 1.0]),
        is_heavy=np.array([True, False, True, False, False]),
        value_bytes=np.array([64, 64, 64, 1]),
        read_value=np.arange(4),
        read_by=np.arange(1, 5),
    )
    assert len(regular_layers(chain).ranges) == 1
    assert layers_for(chain, 2).ranges == ((0, 0), (1, 4))
    assert layers_for(chain, 3).ranges == layers_for(chain, 50).ranges == ((0, 0), (1, 4))
    assert len(layers_for(chain, 1).ranges) == 1
