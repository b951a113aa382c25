"""Results of a layer by the time at which the update makes them."""

from __future__ import annotations

from meshwise.program.names import SentValue, StepResult
from meshwise.spmd.layer import PlannedLayer


def update_groups(planned: PlannedLayer) -> list[list[int]]:
    """Divide the results of a layer's graph that are made after the last micro-batch.

    Args:
        planned: The layer.

    Returns:
        Their positions: values of the loss and gradients of tied parameters for other layers; for
        each phase of the update what is sent to be joined; the results of the step.
    """
    made = planned.made.results
    phase_of = {value: phase for phase, values in enumerate(made.sent) for value in values}
    values: list[int] = []
    phases: list[list[int]] = [[] for _ in made.sent]
    results: list[int] = []
    for j, value in enumerate(made.in_order()):
        if isinstance(value, StepResult):
            results.append(j)
        elif isinstance(value, SentValue):
            phases[phase_of[value]].append(j)
        elif j in planned.programs.final:
            values.append(j)
    return [values, *phases, results]
