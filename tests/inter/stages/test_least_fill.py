"""The least fill within limits: the cutoff is sharp, for any number of stages and a given one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from meshwise.inter.stages.least_fill import least_fill
from meshwise.inter.stages.stage_options import stage_options
from meshwise.inter.stages.stage_problem import as_alpa
from oracle.stage_problems import random_problem


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_the_cutoff_is_sharp(count):
    found = 0
    for seed in range(80):
        problem = random_problem(seed, mixed=seed % 2 == 1)
        if problem.schedule.depends_on_num_stages and not count:
            continue
        options = stage_options(problem, count)
        if not len(options.where):
            continue
        free = least_fill(problem, options, math.inf, math.inf, math.inf)
        for load, once in ((math.inf, math.inf), (free.load_s, free.once_s) if free else (1, 1)):
            best = least_fill(problem, options, load, once, math.inf)
            if best is None:
                continue
            found += 1
            assert best.load_s <= load * (1 + 1e-9)
            assert best.once_s <= once * (1 + 1e-9)
            assert count in (0, len(best.stages))
            again = least_fill(problem, options, load, once, best.fill_s * (1 + 1e-6))
            assert again is not None
            assert again.fill_s == pytest.approx(best.fill_s, rel=1e-9)
            assert least_fill(problem, options, load, once, best.fill_s * (1 - 1e-6)) is None
    assert found > 40


def test_sizes_with_a_common_divisor_that_the_devices_lack():
    # Three hosts of two devices; with submeshes of two hosts alone not all of them can be used.
    for seed in range(200):
        problem = as_alpa(random_problem(seed))
        sizes = [m.num_devices for m in problem.costs.submeshes]
        if problem.num_devices == 6:
            only = np.where(np.array(sizes)[:, None] == 4, problem.costs.microbatch_s, np.inf)
            given = replace(problem, costs=replace(problem.costs, microbatch_s=only))
            options = stage_options(given)
            assert least_fill(given, options, math.inf, math.inf, math.inf) is None
            return
    raise AssertionError("no such problem")
