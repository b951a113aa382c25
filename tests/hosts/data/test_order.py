"""The order of the examples is that of Grain's public pipeline."""

from __future__ import annotations

import sys

import pytest

from doubles.examples import order
from meshwise.errors import DataError
from meshwise.hosts.data.order import order_of


@pytest.mark.parametrize(("size", "seed"), [(1, 0), (2, 1), (22, 7), (1000, 2**32 - 1)])
def test_the_order_is_that_of_grain(size: int, seed: int) -> None:
    found = [order_of(size, seed).example(place) for place in range(3 * size)]
    assert found == order(seed, 3 * size, size)
    for epoch in range(3):
        assert sorted(found[epoch * size :][:size]) == list(range(size))


def test_without_a_seed_and_without_grain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grain.experimental", None)
    assert [order_of(3, None).example(place) for place in range(5)] == [0, 1, 2, 0, 1]
    with pytest.raises(DataError, match=r"install meshwise\[data\], or pass shuffle=False"):
        order_of(3, 0)


@pytest.mark.parametrize(("size", "seed"), [(0, 1), (3, -1), (3, 2**32), (3, 1.0), (2**32 + 1, 0)])
def test_what_has_no_order(size: int, seed: int) -> None:
    with pytest.raises(DataError):
        order_of(size, seed)
