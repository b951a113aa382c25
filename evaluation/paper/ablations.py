"""Rules that say where stages begin; stage construction chooses the rest.

Source: Alpa section 8.3 (equal layer, equal operator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from evaluation.baselines.built_stages import Mode
from evaluation.baselines.restricted_stages import with_cuts
from evaluation.paper.cut_rules import equal_count, equal_operators_in_layers
from meshwise.errors import InfeasibleError
from meshwise.inter.clustering.operator_clustering import Ranges
from meshwise.inter.stages.stage_construction import EPSILON_S, StagePlan
from meshwise.inter.stages.stage_problem import StageProblem


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
