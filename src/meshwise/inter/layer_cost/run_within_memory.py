"""The fastest plans of a run of layers within a limit of memory.

Source: docs/decisions/0011 (the stages finally chosen are always solved again directly).
"""

from __future__ import annotations

from functools import partial

from meshwise.assignment.search.within_row import RowEffort, Within
from meshwise.assignment.solver_time import SolverTime
from meshwise.inter.layer_cost.joint_run import JointRun


def run_within_memory(
    joint: JointRun, *, time: SolverTime, seed: int, like: Within | None = None
) -> Within:
    """Return what finds the cheapest choice of a run for limits of its memory.

    Args:
        joint: The run.
        time: What the solver may take.
        seed: Of the solver.
        like: The same of this run with other micro-batches in flight.
    """
    at_price = partial(joint.composed, time=time, seed=seed)
    return Within(joint.problem(0.0), RowEffort(time=time, seed=seed), like, at_price)
