"""Stage construction with choices taken away: stages that are given, or one device a stage.

Each takes choices out of the table of costs and leaves the rest to stage construction, so that
every difference to `build_stages` is what those choices are worth.

Source: Alpa section 8.2 (inter-op only).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evaluation.baselines.built_stages import Mode, build_stages
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.stages.stage_construction import EPSILON_S, StagePlan
from meshwise.inter.stages.stage_problem import StageProblem
from meshwise.kernels.arrays import Bools


def with_cuts(
    problem: StageProblem, cuts: Ranges, mode: Mode = "time", epsilon_s: float = EPSILON_S
) -> StagePlan:
    """Choose the best submeshes and variants for given stages.

    Args:
        problem: What is to be cut.
        cuts: First and last layer of each stage.
        mode: As in `build_stages`.
        epsilon_s: As in `build_stages`.

    Raises:
        InfeasibleError: no submeshes fit these stages.
    """
    first, last = np.array(cuts).T
    layers = np.zeros((problem.costs.num_layers,) * 2, np.bool_)
    layers[first, last] = True
    allowed = _only(problem, layers[:, :, None, None])
    return build_stages(allowed, mode, num_stages=len(cuts), epsilon_s=epsilon_s)


def one_device_a_stage(
    problem: StageProblem, mode: Mode = "time", epsilon_s: float = EPSILON_S
) -> StagePlan:
    """Build stages of one device each.

    In mode "alpa" every device has a stage, so there must be as many layers as devices.

    Raises:
        InfeasibleError: no such stages fit.
    """
    single = np.array([m.num_devices == 1 for m in problem.costs.submeshes])
    return build_stages(_only(problem, single[:, None]), mode, epsilon_s=epsilon_s)


def _only(problem: StageProblem, allowed: Bools) -> StageProblem:
    """Return the same problem with all other stages made impossible."""
    costs = problem.costs
    return replace(
        problem, costs=replace(costs, microbatch_s=np.where(allowed, costs.microbatch_s, np.inf))
    )
