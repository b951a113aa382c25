"""The heap of XLA: placements that can be followed by hand."""

from __future__ import annotations

import random

import pytest

from meshwise.intra.fusion import instructions
from meshwise.intra.order import Inner, Sizes, scheduled_peak
from meshwise.intra.placement import Lifetime, heap_bytes
from meshwise.intra.result_places import beside_results
from meshwise.intra.values import FUSIBLE, INPUT, OPAQUE, Values


def lives(num_bytes: int, start: int, end: int) -> Lifetime:
    return Lifetime(num_bytes=num_bytes, start=start, ends=(end,))


def most_live(lifetimes: list[Lifetime]) -> int:
    times = range(max(x.end for x in lifetimes) + 1)
    return max(sum(x.num_bytes for x in lifetimes if x.start <= t <= x.end) for t in times)


def test_nothing_takes_nothing() -> None:
    assert heap_bytes([]) == 0


def test_lives_that_meet_lie_apart_and_others_share() -> None:
    assert heap_bytes([lives(128, 0, 3), lives(128, 3, 5)]) == 256
    assert heap_bytes([lives(128, 0, 2), lives(128, 3, 5)]) == 128


def test_offsets_are_aligned_and_the_end_is_not() -> None:
    assert heap_bytes([lives(65, 0, 1), lives(10, 0, 1)]) == 128 + 10


def test_smallest_gap_is_taken() -> None:
    # From time 1 on there are gaps of 512 and, above, of 320.  If 192 went into the first one,
    # only four of the five 128 would find a place below 1536.
    lifetimes = [lives(512, 0, 0), lives(448, 0, 9), lives(320, 0, 0), lives(256, 0, 9)]
    lifetimes += [lives(192, 1, 9), *[lives(128, 1, 9)] * 5]
    assert heap_bytes(lifetimes) == 1536


def test_the_smaller_of_two_heaps_counts_where_the_order_is_sure() -> None:
    # By size the first and the last lie at 0, the second at 256, which leaves [0, 256) and all
    # from 448 to the third: 512.  By length the third comes first, the second lies on it: 448.
    lifetimes = [lives(256, 0, 1), lives(192, 1, 2), lives(64, 2, 4), lives(256, 3, 3)]
    assert most_live(lifetimes) == 448
    assert heap_bytes(lifetimes) == 448
    assert heap_bytes(lifetimes, is_sure=False) == 512


def test_gaps_count_where_neither_order_avoids_them() -> None:
    lifetimes = [lives(256, 4, 5), lives(128, 3, 4), lives(128, 3, 3), lives(192, 2, 3)]
    assert most_live(lifetimes) == 448
    assert heap_bytes(lifetimes) == 512


@pytest.mark.parametrize("seed", range(20))
def test_between_most_live_and_the_sum(seed: int) -> None:
    rng = random.Random(seed)
    lifetimes: list[Lifetime] = []
    for _ in range(40):
        start = rng.randrange(50)
        lifetimes.append(lives(64 * rng.randint(1, 9), start, start + rng.randint(0, 15)))
    found = heap_bytes(lifetimes)
    assert most_live(lifetimes) <= found <= sum(x.num_bytes for x in lifetimes)
    assert found == heap_bytes([x.later(7) for x in lifetimes])


def test_values_lie_where_results_will_be() -> None:
    results = [lives(128, 4, 9), lives(256, 6, 9)]
    in_time, too_late, too_large = lives(128, 0, 3), lives(128, 1, 4), lives(512, 0, 1)
    assert beside_results([in_time], results) == ()
    assert beside_results([too_large], results) == (too_large,)
    # Free until 6: the larger place takes what dies when the smaller one is made.
    assert beside_results([too_late], results) == ()
    assert beside_results([too_late], results[:1]) == (too_late,)
    under = Lifetime(num_bytes=128, start=1, ends=(4,), is_overwritten=True)
    assert beside_results([under], results[:1]) == ()


def test_values_take_turns_where_a_result_will_be() -> None:
    results = [lives(128, 9, 9)]
    first, then, both = lives(128, 0, 3), lives(100, 4, 8), lives(64, 3, 4)
    assert beside_results([first, then], results) == ()
    assert beside_results([both, then, first], results) == (both,)
    assert beside_results([first, then], []) == (first, then)
    # Of three values over one another the last is there too long: the rest goes alone.
    chain = Lifetime(num_bytes=128, start=0, ends=(2, 5, 9))
    assert beside_results([chain], results) == (lives(128, 5, 9),)


def test_lifetimes_of_an_order() -> None:
    # A product, an element-wise step over it, a product of that; then a loop with one value.
    values = Values()
    values.add(INPUT, (), 100, 0, 0)
    values.add(OPAQUE, (0,), 100, 0, 0)
    values.add(FUSIBLE, (1,), 100, 0, 0)
    values.add(OPAQUE, (2,), 30, 0, 0)
    values.outputs.append(3)
    inner = Inner(num_bytes=8, lifetimes=(lives(8, 1, 2),), num_steps=5)
    top = scheduled_peak(instructions(values), Sizes(buffer=values.num_bytes, inner={2: inner}))
    assert set(top.lifetimes) == {
        Lifetime(num_bytes=100, start=0, ends=(1, 7)),
        lives(8, 3, 4),
        lives(30, 2, 8),
    }
    assert top.num_steps == 9
