"""The heap of a compiler: placements that can be followed by hand."""

from __future__ import annotations

import random

import pytest

from meshwise.memory.heap import Lifetime, heap_bytes


def most_live(lifetimes: list[Lifetime]) -> int:
    times = range(max(x.end for x in lifetimes) + 1)
    return max(sum(x.num_bytes for x in lifetimes if x.start <= t <= x.end) for t in times)


def test_nothing_takes_nothing() -> None:
    assert heap_bytes([]) == 0


def test_lives_that_meet_lie_apart_and_others_share() -> None:
    assert heap_bytes([Lifetime(128, 0, 3), Lifetime(128, 3, 5)]) == 256
    assert heap_bytes([Lifetime(128, 0, 2), Lifetime(128, 3, 5)]) == 128


def test_sizes_are_aligned() -> None:
    assert heap_bytes([Lifetime(65, 0, 1), Lifetime(10, 0, 1)]) == 128 + 64


def test_smallest_gap_is_taken() -> None:
    # From time 1 on there are gaps of 512 and, above, of 320.  If 192 went into the first one,
    # only four of the five 128 would find a place below 1536.
    lifetimes = [Lifetime(512, 0, 0), Lifetime(448, 0, 9), Lifetime(320, 0, 0)]
    lifetimes += [Lifetime(256, 0, 9), Lifetime(192, 1, 9), *[Lifetime(128, 1, 9)] * 5]
    assert heap_bytes(lifetimes) == 1536


def test_gaps_count() -> None:
    # By size the first and the last lie at 0, the second at 256, which leaves [0, 256) and all
    # from 448 to the third.
    lifetimes = [Lifetime(256, 0, 1), Lifetime(192, 1, 2), Lifetime(64, 2, 4), Lifetime(256, 3, 3)]
    assert most_live(lifetimes) == 448
    assert heap_bytes(lifetimes) == 512


@pytest.mark.parametrize("seed", range(20))
def test_the_heap_holds_what_is_live_at_once(seed: int) -> None:
    rng = random.Random(seed)
    lifetimes: list[Lifetime] = []
    for _ in range(40):
        start = rng.randrange(30)
        lifetimes.append(Lifetime(64 * rng.randrange(1, 20), start, start + rng.randrange(10)))
    heap = heap_bytes(lifetimes)
    assert most_live(lifetimes) <= heap <= sum(x.num_bytes for x in lifetimes)
    assert heap_bytes(lifetimes[::-1]) <= 1.5 * heap
