"""Simpler deciders over the same costs: fixed cuts, one device a stage, one stage.

Each takes away choices from the table of costs and leaves the rest to stage construction, so that
every difference to `build_stages` is what those choices are worth.

Source: Alpa sections 8.2 (intra-op only, inter-op only) and 8.3 (equal layer); GPipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from meshwise.errors import InfeasibleError
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.cut_rules import equal_count, equal_operators_in_layers, least_variance
from meshwise.inter.stages.stage_construction import EPSILON_S, Mode, StagePlan, build_stages
from meshwise.inter.stages.stage_problem import BoolArray, StageProblem


def with_cuts(
    problem: StageProblem, cuts: Ranges, mode: Mode = "time", epsilon_s: float = EPSILON_S
) -> StagePlan:
    """The best submeshes and variants for given stages.

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
    kept = _only(problem, layers[:, :, None, None])
    return build_stages(kept, mode, num_stages=len(cuts), epsilon_s=epsilon_s)


def equal_layer(
    problem: StageProblem, mode: Mode = "time", epsilon_s: float = EPSILON_S
) -> StagePlan:
    """Stages of equally many layers, or one more; the best number of stages.

    Raises:
        InfeasibleError: none fit.
    """
    return _best_cuts(problem, lambda n: equal_count(problem.costs.num_layers, n), mode, epsilon_s)


def equal_operator(
    problem: StageProblem,
    operators_per_layer: Sequence[int],
    mode: Mode = "time",
    epsilon_s: float = EPSILON_S,
) -> StagePlan:
    """Stages of operators as equally many as the layers allow; the best number of stages.

    The paper's rule of this name cuts operators into layers; that is `cut_rules.equal_count`, with
    stage construction on these layers.

    Raises:
        InfeasibleError: none fit.
    """
    return _best_cuts(
        problem, lambda n: equal_operators_in_layers(operators_per_layer, n), mode, epsilon_s
    )


def gpipe_cuts(
    problem: StageProblem,
    layer_costs: Sequence[float],
    mode: Mode = "time",
    epsilon_s: float = EPSILON_S,
) -> StagePlan:
    """Stages whose summed layer costs vary least; the best number of stages.

    Raises:
        InfeasibleError: none fit.
    """
    return _best_cuts(problem, lambda n: least_variance(layer_costs, n), mode, epsilon_s)


def inter_op_only(
    problem: StageProblem, mode: Mode = "time", epsilon_s: float = EPSILON_S
) -> StagePlan:
    """One device a stage.

    In mode "alpa" every device has a stage, so there must be as many layers as devices.

    Raises:
        InfeasibleError: no such stages fit.
    """
    single = np.array([m.num_devices == 1 for m in problem.costs.submeshes])
    return build_stages(_only(problem, single[:, None]), mode, epsilon_s=epsilon_s)


def intra_op_only(
    problem: StageProblem, mode: Mode = "time", epsilon_s: float = EPSILON_S
) -> StagePlan:
    """One stage.

    Raises:
        InfeasibleError: it does not fit.
    """
    return with_cuts(problem, ((0, problem.costs.num_layers - 1),), mode, epsilon_s)


def _only(problem: StageProblem, kept: BoolArray) -> StageProblem:
    """The same problem with other stages made impossible."""
    costs = problem.costs
    return replace(
        problem, costs=replace(costs, microbatch_s=np.where(kept, costs.microbatch_s, np.inf))
    )


def _best_cuts(
    problem: StageProblem, rule: Callable[[int], Ranges], mode: Mode, epsilon_s: float
) -> StagePlan:
    most = min(problem.costs.num_layers, problem.num_devices)
    plans = list(_plans(problem, (rule(n) for n in range(1, most + 1)), mode, epsilon_s))
    if not plans:
        raise InfeasibleError(f"no number of stages up to {most} fits when cuts follow the rule")
    return min(plans, key=lambda plan: plan.total_s)


def _plans(
    problem: StageProblem, rules: Iterable[Ranges], mode: Mode, epsilon_s: float
) -> Iterable[StagePlan]:
    for cuts in rules:
        try:
            yield with_cuts(problem, cuts, mode, epsilon_s)
        except InfeasibleError:
            continue
