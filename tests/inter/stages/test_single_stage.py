"""One stage on all devices between two prices of memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from doubles.submesh_kinds import uniform_submeshes
from meshwise.inter.stages.single_stage import seconds_at_the_limit
from meshwise.inter.stages.stage_problem import StageCosts

NUM_LAYERS, COUNT = 3, 4
# Free and full price: seconds of a micro-batch and once a step, bytes that stay and that pass.
FAST = {"microbatch_s": 1.0, "once_s": 0.5, "resident_bytes": 40.0, "microbatch_bytes": 10.0}
SLOW = {"microbatch_s": 2.0, "once_s": 0.5, "resident_bytes": 10.0, "microbatch_bytes": 5.0}
TEMPORARY = {"temporary_bytes": 6.0}


def costs(memory_bytes: float, fast: dict[str, float], slow: dict[str, float]) -> StageCosts:
    """One submesh, two variants; only the run of all layers is finite."""
    submeshes = uniform_submeshes(1, 1, memory_bytes)
    arrays: dict[str, np.ndarray] = {}
    for name in fast:
        array = np.full((NUM_LAYERS, NUM_LAYERS, 1, 2), np.inf)
        array[0, -1, 0] = fast[name], slow[name]
        arrays[name] = array
    return StageCosts(submeshes=submeshes, **arrays)


def seconds(memory_bytes: float, slow: dict[str, float] = SLOW, in_flight: float = 1.0) -> float:
    known = costs(memory_bytes, FAST | TEMPORARY, slow | TEMPORARY)
    return seconds_at_the_limit(known, 0, (0, 1), COUNT, in_flight)


def test_between_two_prices_time_is_on_the_line_between_them() -> None:
    # 56 bytes take 4.5 s, 21 bytes 8.5 s.
    assert seconds(21.0) == 8.5
    assert seconds(38.5) == pytest.approx(6.5)
    assert seconds(55.9999) == pytest.approx(4.5, abs=1e-4)


def test_what_fits_at_the_lowest_price_was_searched_already() -> None:
    assert seconds(56.0) == math.inf


def test_what_does_not_fit_at_the_highest_price_is_no_plan() -> None:
    assert seconds(20.9) == math.inf
    assert seconds(30.0, SLOW | {"microbatch_s": math.inf}) == math.inf


def test_micro_batches_in_flight_count() -> None:
    # 40 + 3 * 10 + 6 and 10 + 3 * 5 + 6 bytes.
    assert seconds(76.0, in_flight=3.0) == math.inf
    assert seconds(53.5, in_flight=3.0) == pytest.approx(6.5)
