"""Which devices may stay idle: those at the end of a host, or a whole host.

A stage that begins inside a host is priced as one that gets its input inside that host
(`StageSubmesh.is_inner`), so another stage must be there before it.  Nothing is lost: the stages of
a host can move to its first devices.
"""

from __future__ import annotations

import numpy as np

from meshwise.inter.stages.stage_problem import StageProblem
from meshwise.kernels.arrays import Ints


def host_starts(problem: StageProblem) -> tuple[int, ...]:
    """Return the first device of each host, in order; none where places are not known.

    Args:
        problem: What is to be cut.
    """
    outer = [m for m in problem.costs.submeshes if m.is_inner is False]
    return tuple(sorted({start for m in outer for start in m.starts or ()}))


def after_idle(problem: StageProblem) -> Ints:
    """Return for each device where the next stage may begin if it stays idle, at the earliest.

    Args:
        problem: What is to be cut.

    Returns:
        One more than there are devices.
    """
    found = np.arange(1, problem.num_devices + 2, dtype=np.int64)
    starts = host_starts(problem)
    found[list(starts)] = [*starts[1:], problem.num_devices] if starts else []
    return found
