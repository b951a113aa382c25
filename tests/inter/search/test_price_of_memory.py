"""A pipeline is planned at about the least price of memory at which it fits."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshwise.inter.search.price_of_memory import fitting
from meshwise.inter.search.search_space import PRICES

# Steps that differ by less are as good.
WORTH = 1e-3


def pipeline(held: int, seconds: float) -> Any:
    time = SimpleNamespace(total_s=seconds)
    return SimpleNamespace(peak_bytes=held, least_s=seconds, time=time)


class Made:
    """At each of some prices a pipeline holds less, and takes longer."""

    def __init__(self, steps: list[tuple[float, int, float]]) -> None:
        self.steps = sorted(price for price, _, _ in steps)
        self.held = sorted((held for _, held, _ in steps), reverse=True)
        self.seconds = sorted(seconds for _, _, seconds in steps)
        self.asked: list[float] = []

    def __call__(self, price: float) -> Any:
        self.asked.append(price)
        return self.at(sum(price >= step for step in self.steps[1:]))

    def at(self, n: int) -> Any:
        return pipeline(self.held[n], self.seconds[n])

    @property
    def every(self) -> list[Any]:
        return [self.at(n) for n in range(len(self.steps))]


MADE = st.lists(
    st.tuples(
        # Between two neighbouring prices there is one of these at most.
        st.integers(-7, 12).map(lambda k: 0.2 * 2.0**k),
        st.integers(1, 100),
        st.floats(1.0, 2.0, allow_nan=False),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda step: step[0],
).map(Made)


@given(made=MADE, memory=st.integers(0, 101), below_s=st.floats(1.0, 2.0) | st.just(math.inf))
def test_it_is_the_fastest_that_fits(made: Made, memory: int, below_s: float) -> None:
    found = fitting(made, memory, below_s)
    seconds = [x.time.total_s for x in made.every if x.peak_bytes <= memory]
    best_s = min(seconds, default=math.inf)
    if best_s >= below_s:
        assert found is None
    elif best_s * (1 + WORTH) < below_s:
        assert found is not None
        assert found.peak_bytes <= memory
        assert found.time.total_s <= best_s * (1 + WORTH)


@given(
    pipelines=st.lists(
        st.none() | st.tuples(st.integers(1, 9), st.floats(1.0, 2.0)), min_size=30, max_size=30
    ),
    memory=st.integers(0, 10),
    below_s=st.floats(1.0, 2.0) | st.just(math.inf),
)
def test_of_what_is_planned_it_is_the_fastest_that_fits_in_any_order(
    pipelines: list[tuple[int, float] | None], memory: int, below_s: float
) -> None:
    """Layers are planned by a heuristic, and at a higher price some may hold more."""
    known: dict[float, Any] = {}

    def planned(price: float) -> Any:
        assert price not in known
        known[price] = (made := pipelines[len(known)]) and pipeline(*made)
        return known[price]

    found = fitting(planned, memory, below_s)
    good = [x for x in known.values() if x and x.peak_bytes <= memory and x.least_s < below_s]
    assert found is min(good, key=lambda x: x.least_s, default=None)


@given(made=MADE)
def test_what_fits_with_memory_free_is_planned_once(made: Made) -> None:
    assert fitting(made, math.inf) is not None
    assert made.asked == [PRICES[0]]


@given(made=MADE)
def test_what_is_too_slow_is_planned_once(made: Made) -> None:
    assert fitting(made, 0, below_s=1.0) is None
    assert made.asked == [PRICES[0]]


@given(made=MADE)
def test_what_never_fits_is_planned_at_three_prices(made: Made) -> None:
    assert fitting(made, 0) is None
    assert made.asked[:2] == [*PRICES]
    assert len(made.asked) == 3
    assert made.asked[2] > 1e3


def test_what_cannot_be_planned_is_not_asked_again() -> None:
    asked: list[float] = []
    assert fitting(asked.append, math.inf) is None
    assert asked == [PRICES[0]]
