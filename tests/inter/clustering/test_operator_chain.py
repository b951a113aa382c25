"""Bytes received by runs of operators, and operator clustering, against enumeration."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.errors import InfeasibleError
from meshwise.inter.clustering.candidate_cuts import candidate_cuts
from meshwise.inter.clustering.operator_chain import OperatorChain, crossing_bytes, received_bytes
from meshwise.inter.clustering.operator_clustering import CutTable, cluster_table


def chain_of(flop, values, is_heavy=None):
    """A chain from FLOP and values (producer, bytes, readers)."""
    reads = [(v, r) for v, (_, _, readers) in enumerate(values) for r in readers]
    return OperatorChain(
        flop=np.array(flop, float),
        is_heavy=np.array([f > 0 for f in flop] if is_heavy is None else is_heavy, bool),
        producer=np.array([v[0] for v in values], np.int64),
        value_bytes=np.array([v[1] for v in values], np.int64),
        read_value=np.array([v for v, _ in reads], np.int64),
        read_by=np.array([r for _, r in reads], np.int64),
    )


@st.composite
def chains(draw):
    size = draw(st.integers(1, 10))
    flop = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    values = []
    for producer in draw(st.lists(st.integers(0, size - 1), max_size=14)):
        readers = draw(st.lists(st.integers(0, size - 1), max_size=4))
        # Read twice by one operator now and then, and not at all.
        values.append((producer, draw(st.integers(1, 3)), [r for r in readers if r > producer]))
    return flop, values


def sizes_received(values, first, last):
    """Bytes of each value that the run receives."""
    return [
        size
        for producer, size, readers in values
        if producer < first and any(first <= r <= last for r in readers)
    ]


def received(values, first, last):
    """C(first..last), by its definition."""
    return sum(sizes_received(values, first, last))


def unevenness(flop, values, ranges, of_several_values):
    """Squares of shares of the mean, and a part for each layer that receives several values."""
    mean = max(Fraction(sum(flop)), 1) / len(ranges)
    return sum(
        (sum(flop[a : b + 1]) / mean) ** 2
        + Fraction(of_several_values) * (len(sizes_received(values, a, b)) > 1)
        for a, b in ranges
    )


def best_layers(flop, values, num_layers, delta, of_several_values):
    """Least worst bytes, then least squares and values, by enumeration; None if none."""
    best = None
    limit = Fraction(1 + delta) * sum(flop) / num_layers
    for inner in itertools.combinations(range(1, len(flop)), num_layers - 1):
        bounds = [0, *inner, len(flop)]
        runs = list(itertools.pairwise(bounds))
        sums = [sum(flop[a:b]) for a, b in runs]
        if max(sums) <= limit:
            worst = max(received(values, a, b - 1) for a, b in runs)
            ranges = [(a, b - 1) for a, b in runs]
            key = (worst, unevenness(flop, values, ranges, of_several_values))
            best = key if best is None or key < best else best
    return best


@given(chains())
def test_received_bytes_are_what_their_definition_says(given_chain):
    flop, values = given_chain
    size = len(flop)
    table = received_bytes(chain_of(flop, values), np.arange(size + 1))
    for a in range(size + 1):
        for b in range(size + 1):
            assert table[a, b] == (received(values, a, b - 1) if b > a else 0)


@given(chains(), st.randoms(use_true_random=False))
def test_received_bytes_between_some_boundaries(given_chain, random):
    flop, values = given_chain
    inner = [c for c in range(1, len(flop)) if random.random() < 0.5]
    bounds = [0, *inner, len(flop)]
    table = received_bytes(chain_of(flop, values), np.array(bounds))
    for a, b in itertools.combinations(range(len(bounds)), 2):
        assert table[a, b] == received(values, bounds[a], bounds[b] - 1)


@given(chains())
def test_crossing_bytes_are_what_the_rest_receives(given_chain):
    flop, values = given_chain
    crossing = crossing_bytes(chain_of(flop, values))
    assert crossing.tolist() == [received(values, c, len(flop) - 1) for c in range(len(flop))]


def cluster_operators(chain, num_layers, delta, of_several_values=0.0):
    return cluster_table(CutTable.of(chain), num_layers, delta, of_several_values)


@settings(max_examples=400)
@given(
    chains(),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from([0.0, 0.25, 2.0]),
)
def test_enumeration_finds_no_better_layers(given_chain, num_layers, delta, weight):
    flop, values = given_chain
    chain = chain_of(flop, values)
    possible = num_layers <= len(flop)
    best = best_layers(flop, values, num_layers, delta, weight) if possible else None
    if best is None:
        with pytest.raises(InfeasibleError, match=f"no {num_layers} layers"):
            cluster_operators(chain, num_layers, delta)
        return
    layers = cluster_operators(chain, num_layers, delta, weight)
    assert layers.all_cuts_tried
    assert [a for a, _ in layers.ranges] == [0, *(b + 1 for _, b in layers.ranges[:-1])]
    assert layers.ranges[-1][1] == len(flop) - 1
    assert len(layers.ranges) == num_layers
    assert all(a <= b for a, b in layers.ranges)
    assert layers.flop == tuple(sum(flop[a : b + 1]) for a, b in layers.ranges)
    assert layers.num_received == sum(len(sizes_received(values, a, b)) for a, b in layers.ranges)
    worst, least = best
    assert layers.worst_received_bytes == worst
    # Equal ones may differ by rounding.
    found = unevenness(flop, values, layers.ranges, weight)
    assert float(found) == pytest.approx(float(least), rel=1e-9)


def transformer(num_layers, light=3):
    """Layers of 6 heavy operators with light ones between; a residual stream, wider inside.

    Between layers only the stream crosses (1 unit), inside a layer more.
    """
    flop, heavy, values = [], [], []
    stream = None
    for _ in range(num_layers):
        entry = stream
        for i in range(6):
            for j in range(light + 1):
                here = len(flop)
                flop.append(100.0 if j == 0 else 0.5)
                heavy.append(j == 0)
                readers = [here + 1]
                if i == 0 and j == 0 and entry is not None:
                    values[entry][2].append(here)
                if i == 5 and j == light:
                    if entry is not None:
                        values[entry][2].append(here)
                    readers = []
                    stream = len(values)
                values.append((here, 1 if stream == len(values) else 4, readers))
    return chain_of(flop, values, heavy)


def test_layers_of_a_transformer_are_found():
    chain = transformer(8)
    for num_layers in (2, 4, 8):
        size = 24 * 8 // num_layers
        ranges = tuple((size * i, size * (i + 1) - 1) for i in range(num_layers))
        found = cluster_operators(chain, num_layers, 0.5)
        assert found.ranges == ranges
        assert found.worst_received_bytes == 1


def test_few_candidates_find_the_same_layers_in_a_long_chain():
    chain = transformer(96, light=15)
    assert chain.num_operators == 9216
    found = cluster_operators(chain, 96, 0.5)
    assert found.ranges == tuple((96 * i, 96 * i + 95) for i in range(96))
    assert not found.all_cuts_tried


def test_candidates():
    chain = transformer(4)
    assert candidate_cuts(chain, 95).tolist() == list(range(1, 96))
    # One between each two heavy operators; the ends of layers are the cheapest of theirs.
    between = candidate_cuts(chain, 94)
    assert len(between) == 23
    assert {24, 48, 72} <= set(between.tolist())
    assert candidate_cuts(chain, 4).tolist() == [1, 24, 48, 72]


def test_why_there_are_no_such_layers():
    with pytest.raises(InfeasibleError, match="operators 1 to 1, which no candidate cut divides"):
        cluster_operators(chain_of([1, 9, 1, 1], []), 3, 0.5)
    with pytest.raises(InfeasibleError, match="there are 2 pieces to choose from"):
        cluster_operators(chain_of([1, 1], []), 3, 0.5)
    with pytest.raises(InfeasibleError, match="no choice of cuts is that even"):
        cluster_operators(chain_of([3, 3, 3], []), 2, 0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flop": np.zeros(0)}, "at least one operator"),
        ({"value_bytes": np.array([1, 2])}, "`value_bytes` must fit `producer`"),
        ({"read_value": np.array([1])}, r"`read_value` must lie in 0\.\.0"),
        ({"read_by": np.array([2])}, r"`read_by` must lie in 0\.\.1"),
        ({"producer": np.array([-1])}, r"`producer` must lie in 0\.\.1"),
        ({"read_by": np.array([0])}, "made by itself or later"),
    ],
)
def test_arrays_that_do_not_agree_are_refused(change, message):
    fields = {
        "flop": np.ones(2),
        "is_heavy": np.ones(2, bool),
        "producer": np.array([0]),
        "value_bytes": np.array([1]),
        "read_value": np.array([0]),
        "read_by": np.array([1]),
    }
    OperatorChain(**fields)
    with pytest.raises(ValueError, match=message):
        OperatorChain(**(fields | change))
