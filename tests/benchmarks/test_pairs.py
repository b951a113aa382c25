"""The statistics of paired runs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS
from benchmarks.pairs import PairedTimes, median_interval, run_pairs
from benchmarks.record import write_record


def test_the_ratio_is_taken_pair_by_pair() -> None:
    times = PairedTimes(ours_s=(2.0, 30.0, 4.0), theirs_s=(1.0, 10.0, 4.0))
    result = times.to_json()
    assert result["ratio_median"] == 2.0
    assert result["ours_median_s"] == 4.0
    assert result["num_pairs"] == 3


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = random.Random(0)
    hits = 0
    for _ in range(1000):
        low, high = median_interval([rng.expovariate(1.0) for _ in range(40)])
        hits += low <= 0.6931471805599453 <= high
    assert 0.94 < hits / 1000 < 0.995


def test_pairs_alternate_and_warm_up_is_not_timed() -> None:
    order: list[str] = []
    times = run_pairs(
        lambda: order.append("a"), lambda: order.append("b"), num_pairs=4, num_warmup=1
    )
    assert len(times.ours_s) == len(times.theirs_s) == 4
    assert "".join(order) in ("abbaabbaab", "baabbaabba")


def test_a_record_says_where_it_was_measured(tmp_path: Path) -> None:
    record = json.loads(write_record(tmp_path, "x", {"a": 1}).read_text())
    assert record["result"] == {"a": 1}
    assert record["machine"]["packages"]["jax"]
    assert record["machine"]["cores"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_each_benchmark_runs(name: str) -> None:
    assert BENCHMARKS[name](True)
