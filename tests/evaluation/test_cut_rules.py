"""Rules that look at counts or costs alone."""

from __future__ import annotations

import itertools

import pytest
from evaluation.paper.cut_rules import equal_count, equal_operators_in_layers, least_variance
from hypothesis import given
from hypothesis import strategies as st


def test_equal_counts():
    assert equal_count(6, 3) == ((0, 1), (2, 3), (4, 5))
    assert equal_count(3, 3) == ((0, 0), (1, 1), (2, 2))
    lengths = [b - a + 1 for a, b in equal_count(10, 4)]
    assert sorted(lengths) == [2, 2, 3, 3]


@pytest.mark.parametrize("num_runs", [0, 3])
def test_more_runs_than_items_are_refused(num_runs):
    with pytest.raises(ValueError, match=f"2 items cannot be cut into {num_runs} runs"):
        equal_count(2, num_runs)
    with pytest.raises(ValueError, match=f"2 items cannot be cut into {num_runs} runs"):
        least_variance([1.0, 1.0], num_runs)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 8))
def test_no_runs_vary_less(costs, num_runs):
    if num_runs > len(costs):
        return

    def squares(bounds):
        return sum(sum(costs[a:b]) ** 2 for a, b in itertools.pairwise(bounds))

    runs = least_variance([float(c) for c in costs], num_runs)
    assert [a for a, _ in runs] == [0, *(b + 1 for _, b in runs[:-1])]
    assert all(a <= b for a, b in runs)
    least = min(
        squares([0, *inner, len(costs)])
        for inner in itertools.combinations(range(1, len(costs)), num_runs - 1)
    )
    assert squares([0, *(b + 1 for _, b in runs)]) == least


def test_layers_of_unequal_numbers_of_operators():
    assert equal_operators_in_layers([1, 1, 1, 1, 8, 4], 3) == ((0, 3), (4, 4), (5, 5))
