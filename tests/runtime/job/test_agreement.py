"""What differs between processes is told with who has what; old turns leave the store."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from meshwise.errors import ClusterError
from meshwise.runtime.job.agreement import differences
from meshwise.runtime.job.job import Job


@dataclass
class Store:
    """A key-value store in this process."""

    values: dict[str, Any] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, timeout=30)
            return self.values[key]

    def key_value_increment(self, key: str, increment: int) -> int:
        self.values[key] = self.values.get(key, 0) + increment
        return self.values[key]

    def key_value_delete(self, key: str) -> None:
        self.values.pop(key, None)


def both(act: Any) -> list[Any]:
    """What two processes of a job return, or raise."""
    store, found = Store(), [None, None]

    def run(process: int) -> None:
        try:
            found[process] = act(Job(process=process, num_processes=2, store=store, coordinator=""))
        except ClusterError as error:
            found[process] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*found, store]


def test_what_differs_names_the_processes() -> None:
    facts = [{"jax": "1", "x": "a"}, {"jax": "1", "x": "b"}, {"jax": "1"}, {"jax": "1", "x": "b"}]
    assert differences(facts) == ["x is a in process 0, b in processes 1, 3, nothing in process 2"]
    assert differences(facts[1::2]) == []


def test_an_exchange_gives_all_texts_and_leaves_only_the_last_turn() -> None:
    def act(job: Job) -> list[list[str]]:
        return [job.exchange("a turn", f"{n} of {job.process}") for n in range(5)]

    one, other, store = both(act)
    assert one == other == [[f"{n} of 0", f"{n} of 1"] for n in range(5)]
    assert sorted(key for key in store.values if "/turn/" in key) == [
        "meshwise/turn/5/0",
        "meshwise/turn/5/1",
    ]


def test_processes_at_different_places_are_both_told() -> None:
    found = both(lambda job: job.exchange(["planning", "saving"][job.process], ""))
    for error in found[:2]:
        with pytest.raises(ClusterError, match="come apart: .* at (planning|saving)"):
            raise error
