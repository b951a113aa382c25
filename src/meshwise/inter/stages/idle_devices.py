"""Which devices may stay idle: those at the end of a host, or whole hosts.

A stage that begins inside a host is priced as if its input came from inside that host
(`StageSubmesh.is_inner`), so there must be a stage before it on the same host.  No plan is lost:
the stages of a host can always move to its first devices.
"""

from __future__ import annotations

import numpy as np

from meshwise.inter.stages.stage_problem import StageProblem
from meshwise.kernels.arrays import Ints


def host_starts(problem: StageProblem) -> tuple[int, ...]:
    """Return the first device of each host, in order; empty if submeshes have no known places.

    Args:
        problem: What is to be cut.
    """
    outer = [m for m in problem.costs.submeshes if m.is_inner is False]
    return tuple(sorted({start for m in outer for start in m.starts or ()}))


def after_idle(problem: StageProblem) -> Ints:
    """Return for each device where the next stage may begin, at the earliest, if it stays idle.

    Args:
        problem: What is to be cut.

    Returns:
        Numbers of devices; one entry more than there are devices.
    """
    found = np.arange(1, problem.num_devices + 2, dtype=np.int64)
    starts = host_starts(problem)
    found[list(starts)] = [*starts[1:], problem.num_devices] if starts else []
    return found
