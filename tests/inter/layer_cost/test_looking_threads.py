"""Which thread looks at entries, and in which order what is seen is noted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from meshwise.inter.layer_cost.looking_threads import LookingThreads


class Layer:
    """Notes who looked; the solver has entries of the second row."""

    def __init__(self) -> None:
        self.looked: dict[Any, int] = {}
        self.noted: list[Any] = []
        self.prepared: list[Any] = []

    def is_for_the_solver(self, place: Any) -> bool:
        return place[0] == 1

    def prepare(self, place: Any) -> None:
        self.prepared.append((place, threading.get_ident()))

    def look(self, place: Any) -> Any:
        if place[1] < 0:
            raise ValueError("no such state")
        self.looked[place] = threading.get_ident()
        return (float(place[1]), None)

    def note(self, place: Any, seen: Any) -> None:
        assert seen[0] == place[1]
        self.noted.append(place)


def test_the_solver_works_in_the_calling_thread_and_notes_are_in_order() -> None:
    layer: Any = Layer()
    places = [(n % 2, n) for n in range(40)]
    with LookingThreads() as threads:
        threads.sharpen([(layer, place) for place in places])
    assert layer.noted == places
    me = threading.get_ident()
    assert layer.prepared == [(place, me) for place in places]
    assert {place for place, who in layer.looked.items() if who == me} == set(places[1::2])


def test_an_error_of_a_look_is_told_and_no_thread_is_left() -> None:
    layer: Any = Layer()
    before = threading.active_count()
    with pytest.raises(ValueError, match="no such state"), LookingThreads() as threads:
        threads.sharpen([(layer, (0, n)) for n in (1, 2, -1, 3)])
    assert not layer.noted
    assert threading.active_count() == before
