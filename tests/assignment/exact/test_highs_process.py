"""HiGHS in a process of its own: the same answers, and an end when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from assignment.problems import deaf_instance
from meshwise.assignment.exact.highs import HighsEffort, HighsProgram, Outcome, solve_program
from meshwise.assignment.exact.highs_process import Beside
from meshwise.assignment.exact.integer_program import num_columns, solve_exactly
from meshwise.assignment.network import network_of
from meshwise.errors import SolverError

FAR_S = 1e6


def _knapsack(capacity: float, upper: float = 1.0) -> HighsProgram:
    """The dearest of five things that fit."""
    return HighsProgram(
        cost=-np.array([5.0, 4.0, 3.0, 2.0, 1.0]),
        upper=np.full(5, upper),
        num_whole=5,
        row_lower=np.full(1, -np.inf),
        row_upper=np.array([capacity]),
        first=np.array([0, 5], np.int32),
        column=np.arange(5, dtype=np.int32),
        value=np.array([5.0, 3.0, 3.0, 2.0, 2.0]),
    )


def _after(looks: int, then: Callable[[], bool]) -> Callable[[], bool]:
    """What waits so many looks until it asks something."""
    left = [looks]

    def look() -> bool:
        left[0] -= 1
        return left[0] < 0 and then()

    return look


def _solved(beside: Beside, program: HighsProgram) -> Outcome | None:
    return beside.solve(program, _far(), lambda: False)


def _far() -> HighsEffort:
    return HighsEffort(deadline=time.monotonic() + FAR_S)


def test_the_same_outcomes_one_after_the_other() -> None:
    with Beside() as beside:
        for capacity in (7.0, 9.0, -1.0):
            program = _knapsack(capacity)
            here = solve_program(program, _far(), lambda: False)
            there = _solved(beside, program)
            assert there is not None
            assert (there.status, there.bound) == (here.status, here.bound)
            assert there.values.tolist() == here.values.tolist()
        process = beside.process
    assert there.status == "infeasible"
    assert process is not None
    assert process.returncode is not None


def test_a_failure_comes_back() -> None:
    program = _knapsack(np.inf, np.inf)
    with Beside() as beside, pytest.raises(SolverError, match="HiGHS stopped with"):
        _solved(beside, program)


def test_the_exact_engine_ends_in_the_middle_of_the_root() -> None:
    """What it would have found by its deadline is not waited for."""
    network = network_of(deaf_instance())
    assert num_columns(network) > 40_000
    stop = np.zeros(1, np.int8)
    timer = threading.Timer(0.5, stop.fill, (1,))
    timer.start()
    effort = HighsEffort(deadline=time.monotonic() + 30)
    answer = solve_exactly(network, cutoff=np.inf, first_rows=[0], effort=effort, stop=stop)
    timer.join()
    assert answer.choice is None
    assert not answer.is_proved


def test_no_process_is_left_after_a_stop() -> None:
    program = _large_program()
    with Beside() as beside:
        assert beside.solve(program, _far(), _after(50, lambda: True)) is None
        process = beside.process
    assert process is not None
    assert process.returncode is not None


def test_it_ends_with_the_process_that_asked() -> None:
    """Whose end closes the pipe, in the middle of a root."""
    with Beside() as beside:

        def end() -> bool:
            assert beside.process is not None
            assert beside.process.stdin is not None
            beside.process.stdin.close()
            return False

        with pytest.raises(SolverError, match="ended by itself"):
            beside.solve(_large_program(), _far(), _after(50, end))
        assert beside.process is not None
        assert beside.process.wait() == 0


def _large_program() -> HighsProgram:
    """A covering whose root takes long."""
    return _covering(60_000, 30_000, 60)


def _covering(num_columns: int, num_rows: int, width: int) -> HighsProgram:
    rng = np.random.default_rng(0)
    column = rng.integers(0, num_columns, (num_rows, width)).astype(np.int32)
    column = np.array([np.unique(row) for row in column], dtype=object)
    first = np.concatenate([[0], np.cumsum([len(row) for row in column])]).astype(np.int32)
    return HighsProgram(
        cost=rng.random(num_columns),
        upper=np.ones(num_columns),
        num_whole=num_columns,
        row_lower=np.ones(num_rows),
        row_upper=np.full(num_rows, np.inf),
        first=first,
        column=np.concatenate(list(column)),
        value=np.ones(int(first[-1])),
    )


def test_counted_looks_end_a_run_where_they_ended_it_before() -> None:
    """The clock has no part in it."""
    program = _covering(200, 100, 8)
    found = [solve_program(program, HighsEffort(looks=3), lambda: False) for _ in range(2)]
    assert [outcome.status for outcome in found] == ["unfinished"] * 2
    assert found[0].bound == found[1].bound
    assert found[0].num_looks == found[1].num_looks >= 3
    assert found[0].values.tolist() == found[1].values.tolist()
