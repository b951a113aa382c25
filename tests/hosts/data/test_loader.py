"""A loader in one process that takes some rows: what it reads, where it goes on, how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from doubles.examples import NUM_EXAMPLES, ROWS, WIDTH, Counting, order, whole_batch
from meshwise.errors import DataError
from meshwise.hosts.data import reading
from meshwise.hosts.data.loader import BatchUse, Loader, LoaderOptions
from meshwise.hosts.data.sources import Leaf
from meshwise.runtime.host_rows import HostRows, Span


def use_of(x: Sequence[Span], y: Sequence[Span], rows: int = ROWS) -> BatchUse:
    leaves = tuple(
        Leaf(name=name, shape=(rows, WIDTH), dtype=np.dtype(np.float32), dim=0) for name in "xy"
    )
    return BatchUse(
        tree={"x": 0, "y": 1},
        leaves=leaves,
        spans=(tuple(x), tuple(y)),
        finish=lambda found: dict(zip("xy", found, strict=True)),
    )


WHOLE = use_of([(0, ROWS)], [(0, ROWS)])


def options(**changed: Any) -> LoaderOptions:
    given: dict[str, Any] = {"seed": 3, "shuffle": True, "epochs": 1, "prefetch": 2, "threads": 3}
    return LoaderOptions(**given | changed)


def test_batches_are_the_rows_of_the_order_over_epochs() -> None:
    examples = order(3, 2 * NUM_EXAMPLES)
    with Loader(Counting(), WHOLE, options(epochs=2)) as loader:
        batches = list(loader)
        assert next(loader, None) is None
    # 44 examples are five batches of 8; the third has the end of one epoch, and begins the next.
    assert len(batches) == 5
    for n, batch in enumerate(batches):
        expected = whole_batch(examples[n * ROWS :][:ROWS])
        for name in "xy":
            assert isinstance(batch[name], np.ndarray)
            np.testing.assert_array_equal(batch[name], expected[name])


def test_each_leaf_has_the_rows_that_are_taken_and_parts_are_read_once() -> None:
    sources = {name: Counting(name) for name in "xy"}
    loader = Loader(sources, use_of([(0, 2), (4, 6)], [(5, 8)]), options(prefetch=0))
    batch, examples = next(loader), order(3, ROWS)
    expected = whole_batch(examples)
    assert isinstance(batch["x"], HostRows)
    assert batch["x"].spans == ((0, 2), (4, 6))
    np.testing.assert_array_equal(batch["x"][(slice(4, 6), slice(None))], expected["x"][4:6])
    np.testing.assert_array_equal(batch["y"][(slice(6, 8), slice(None))], expected["y"][6:8])
    assert sorted(sources["x"].read) == sorted(examples[n] for n in (0, 1, 4, 5))
    assert sorted(sources["y"].read) == sorted(examples[n] for n in (5, 6, 7))


def test_a_source_of_whole_examples_is_asked_once_a_row() -> None:
    source = Counting()
    loader = Loader(source, use_of([(0, 4)], [(2, 6)]), options(prefetch=0))
    next(loader)
    assert sorted(source.read) == sorted(order(3, ROWS)[:6])


def test_a_process_that_takes_nothing_reads_nothing() -> None:
    source = Counting()
    batches = list(Loader(source, use_of([], []), options(epochs=2)))
    assert len(batches) == 5
    assert batches[0]["x"].spans == ()
    assert source.read == []


def test_batches_are_read_ahead() -> None:
    source = Counting()
    loader = Loader(source, WHOLE, options(prefetch=2, epochs=None))
    next(loader)
    wanted_s = time.monotonic() + 10
    while len(source.read) < 3 * ROWS and time.monotonic() < wanted_s:
        time.sleep(0.01)
    assert len(source.read) == 3 * ROWS
    assert loader.state()["examples"] == ROWS


@pytest.mark.parametrize("rows", [ROWS, 6])
def test_a_loader_goes_on_where_another_was(rows: int) -> None:
    examples = order(3, 60)
    first = Loader(Counting(), WHOLE, options(epochs=None))
    for _ in range(3):
        next(first)
    state = json.loads(json.dumps(first.state()))
    first.close()
    use = use_of([(0, rows)], [(0, rows)], rows)
    for n, batch in zip(
        range(3), Loader(Counting(), use, options(epochs=None), state), strict=False
    ):
        expected = whole_batch(examples[3 * ROWS + n * rows :][:rows])
        np.testing.assert_array_equal(batch["x"], expected["x"])


@pytest.mark.parametrize(
    ("changed", "start", "message"),
    [
        ({"seed": 4}, {"examples": 8, "num_examples": 22, "seed": 3}, "with seed 3, this"),
        ({}, {"examples": 8, "num_examples": 21, "seed": 3}, "with num_examples 21, this"),
        ({}, {"num_examples": 22, "seed": 3}, "no place in the order, got None"),
        ({}, {"examples": -1, "num_examples": 22, "seed": 3}, "no place in the order, got -1"),
        ({"shuffle": False}, {"examples": 8, "num_examples": 22, "seed": 3}, "has None"),
    ],
)
def test_the_state_of_another_order_is_refused(changed: Any, start: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Loader(Counting(), WHOLE, options(**changed), start)


@pytest.mark.parametrize("changed", [{"epochs": 0}, {"prefetch": -1}, {"threads": 1.5}])
def test_options_are_checked(changed: Any) -> None:
    with pytest.raises(DataError, match="must be a whole number of at least"):
        options(**changed)


class Failing(Counting):
    def __init__(self, number: int, error: BaseException) -> None:
        super().__init__()
        self.number, self.error = number, error

    def __getitem__(self, index: int) -> Any:
        if index == self.number:
            raise self.error
        return super().__getitem__(index)


def test_an_error_of_the_source_comes_out_of_the_loop_and_the_batch_can_be_read_again() -> None:
    examples = order(3, NUM_EXAMPLES)
    source = Failing(examples[ROWS + 2], OSError("the disk is gone"))
    loader = Loader(source, WHOLE, options())
    next(loader)
    with pytest.raises(OSError, match="the disk is gone") as found:
        next(loader)
    assert found.value.__notes__ == [f"while example {source.number} of the source was read"]
    assert loader.state()["examples"] == ROWS
    source.number = -1
    expected = whole_batch(examples[ROWS : 2 * ROWS])
    np.testing.assert_array_equal(next(loader)["x"], expected["x"])


def whole(x: Any, y: Any) -> list[Any]:
    return [{"x": x, "y": y}] * 9


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "has no len"),
        ({"x": np.ones((9, WIDTH))}, "does not fit the batch"),
        ({"x": np.ones((9, WIDTH)), "y": np.ones((8, WIDTH))}, "x has 9, y has 8"),
        ([], "no examples"),
        ([1] * 7, "has 7 examples, and epochs=1 of them are fewer than one batch of 8"),
        ([np.ones(WIDTH, np.float32)] * 9, "has the tree PyTreeDef"),
        (whole(np.ones(3, np.float32), np.ones(WIDTH, np.float32)), r"float32\[3\] for x"),
        (whole(np.ones(WIDTH, np.int32), np.ones(WIDTH, np.float32)), r"int32\[8\] for x"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        next(Loader(source, WHOLE, options()))


def test_a_closed_loader_says_how_to_go_on_and_its_threads_end() -> None:
    before = set(threading.enumerate())
    loader = Loader(Counting(), WHOLE, options())
    next(loader)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 3
    loader.close()
    with pytest.raises(DataError, match=r"make another one with start=loader.state\(\)"):
        next(loader)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_source_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_TELL_EVERY_S", 0.05)
    answer = threading.Event()

    class Slow(Counting):
        def __getitem__(self, index: int) -> Any:
            answer.wait(10)
            return super().__getitem__(index)

    loader = Loader(Slow(), WHOLE, options())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="has not given the rows of a batch"):
            next(loader)
    answer.set()


_BLOCKED = """
import threading
from hosts.data.test_loader import WHOLE, Loader, options
from doubles.examples import Counting

class Blocked(Counting):
    def __getitem__(self, index):
        print("reading", flush=True)
        threading.Event().wait()

next(Loader(Blocked(), WHOLE, options()))
"""


def test_ctrl_c_ends_a_process_whose_source_does_not_answer() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{_BLOCKED}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("reading")
            process.send_signal(signal.SIGINT)
            _, text = process.communicate(timeout=60)
            assert process.returncode == -signal.SIGINT, text
            assert "KeyboardInterrupt" in text
        finally:
            process.kill()
