"""What a process says of where it is, and how long it waits there."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from meshwise.runtime.job import whereabouts
from meshwise.runtime.job.whereabouts import Whereabouts


class Pending:
    """An array that devices have yet to make."""

    is_made = False

    def is_deleted(self) -> bool:
        return False

    def is_ready(self) -> bool:
        return self.is_made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(whereabouts.time, "monotonic", lambda: now[0])
    return now


def test_outside_of_steps_there_is_nothing(clock: list[float]) -> None:
    place = Whereabouts()
    clock[0] = 100.0
    assert (place.text(), place.waited_s()) == ("", 0.0)


def test_each_thread_is_somewhere(clock: list[float]) -> None:
    place = Whereabouts()
    place.at("in step 3")
    clock[0] = 2.0
    inside, leave = threading.Event(), threading.Event()

    def save() -> None:
        with place.waiting("at the save, waiting for process 1"):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=save)
    thread.start()
    assert inside.wait(10)
    place.at(None)
    assert place.text() == "at the save, waiting for process 1"
    leave.set()
    thread.join()
    # What the first thread was at is not there again.
    assert place.text() == ""


def test_a_wait_within_another_ends_where_it_began(clock: list[float]) -> None:
    place = Whereabouts()
    place.at("in step 3")
    with place.waiting("at the address, waiting for process 1"):
        clock[0] = 5.0
        assert "address" in place.text()
    assert place.text() == "in step 3"
    assert place.waited_s() == 5.0


def test_a_step_that_was_dispatched_is_waited_for_until_it_is_done(clock: list[float]) -> None:
    place, result = Whereabouts(), Pending()
    given: Any = result
    place.dispatched("a step", [given])
    clock[0] = 30.0
    assert (place.text(), place.waited_s()) == ("in a step", 30.0)
    result.is_made = True
    assert (place.text(), place.waited_s()) == ("", 0.0)


def test_where_steps_are_long_a_long_one_is_no_wait(clock: list[float]) -> None:
    place = Whereabouts()
    place.at("in step 0")
    clock[0] = 30.0
    place.at(None)
    place.at("in step 1")
    clock[0] = 30.0 + 89.0
    assert place.waited_s() == 0.0
    clock[0] = 30.0 + 91.0
    assert place.waited_s() == 91.0


def test_what_is_waited_for_behind_calls_is_told(clock: list[float]) -> None:
    place = Whereabouts()
    place.watch(lambda: ("transfer 3 from process 1", 7.0))
    place.watch(lambda: None)
    assert place.text() == "waiting for transfer 3 from process 1"
    assert place.waited_s() == 7.0


def test_a_text_that_cannot_be_made_ends_nothing(clock: list[float]) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    place = Whereabouts()
    place.at(Broken())
    assert place.text() == "somewhere (ValueError)"
