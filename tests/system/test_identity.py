"""Objects as keys by their identity."""

from __future__ import annotations

import gc
import weakref

from meshwise.system.identity import Same


class Thing:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    def __hash__(self) -> int:
        return 1


def test_equal_objects_are_different_keys() -> None:
    one, other = Thing(), Thing()
    known = {Same(one): "one", Same(other): "other"}
    assert (known[Same(one)], known[Same(other)]) == ("one", "other")
    assert Same(one) != one
    assert {(Same(one), 2)} == {(Same(one), 2)}


def test_a_key_keeps_its_object() -> None:
    known = {Same(Thing()): 1}
    (key,) = known
    alive = weakref.ref(key.value)
    # Young objects only: to walk all that other tests left takes seconds.
    gc.collect(1)
    assert alive() is not None
    del key, known
    gc.collect(1)
    assert alive() is None
