"""Generated problems are as hard as they say, and can be solved."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.tight_instances import least_need, tightened, training_step

from meshwise.assignment.instance import evaluate


@pytest.mark.parametrize("seed", [0, 7])
def test_the_choices_of_least_usage_are_allowed_and_need_the_least(seed: int) -> None:
    instance = training_step(seed)
    assert instance.num_nodes >= 10_000
    ends = zip(instance.first_choice[:-1], instance.first_choice[1:], strict=True)
    least = [int(np.argmin(instance.usages[first:end])) for first, end in ends]
    found = evaluate(tightened(instance, 1.01), least)
    assert found.cost is not None
    assert found.peak == least_need(instance)


def test_equal_seeds_make_equal_problems() -> None:
    one, other = training_step(3), training_step(3)
    assert np.array_equal(one.edge_costs, other.edge_costs)
    assert np.array_equal(one.intervals, other.intervals)
