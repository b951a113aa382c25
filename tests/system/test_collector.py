"""The collector is off inside and afterwards as it was."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from meshwise.system.collector import collection_paused


@pytest.fixture(autouse=True)
def _collector_stays_on() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_off_inside_and_on_again() -> None:
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_on_again_after_an_exception() -> None:
    with pytest.raises(ValueError, match="inside"), collection_paused():
        raise ValueError("inside")
    assert gc.isenabled()


def test_what_a_user_turned_off_stays_off() -> None:
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_what_was_made_inside_is_old_afterwards() -> None:
    with collection_paused():
        made = [[] for _ in range(20_000)]
    assert gc.get_count()[0] < len(made)
    assert gc.get_freeze_count() == 0


def test_what_a_user_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collection_paused():
            pass
        # What is freed since then is gone from it.
        assert 0 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("first_out", [0, 1])
def test_blocks_of_two_threads_that_overlap(first_out: int) -> None:
    inside = [threading.Event(), threading.Event()]
    leave = [threading.Event(), threading.Event()]

    def block(number: int) -> None:
        with collection_paused():
            inside[number].set()
            leave[number].wait(10)

    threads = [threading.Thread(target=block, args=(number,)) for number in range(2)]
    for number in range(2):
        threads[number].start()
        assert inside[number].wait(10)
    assert not gc.isenabled()
    for number in (first_out, 1 - first_out):
        leave[number].set()
        threads[number].join(10)
    assert gc.isenabled()
