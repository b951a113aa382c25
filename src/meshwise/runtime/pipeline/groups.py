"""Results of a layer by the time at which the update makes them."""

from __future__ import annotations

from meshwise.spmd.layer import PlannedLayer


def update_groups(planned: PlannedLayer, num_phases: int) -> list[list[int]]:
    """Positions among the results of a layer's graph.

    Args:
        planned: The layer.
        num_phases: How often the update joins values of layers.

    Returns:
        Values of the loss and gradients of tied parameters for other layers; for each phase what is
        sent to be joined; the results of the step.
    """
    phases = (_sends_of(planned, phase) for phase in range(num_phases))
    return [_values_of(planned), *phases, _results_of(planned)]


def _starts(planned: PlannedLayer) -> dict[str, int]:
    """Where the parts of a layer's results start."""
    made = planned.made
    found: dict[str, int] = {}
    at = 0
    for name, size in (
        ("state", made.num_state),
        ("leaving", len(made.joint.piece.leaving)),
        ("inward", len(made.joint.inward)),
        ("sent", len(made.sent)),
        ("results", len(made.results) - made.num_state),
        ("sends", sum(map(len, made.share.sends))),
        ("collected", len(made.collected)),
    ):
        found[name] = at
        at += size
    found["end"] = at
    return found


def _values_of(planned: PlannedLayer) -> list[int]:
    """Values of the loss, gradients of tied parameters for other stages."""
    at = _starts(planned)
    final = set(planned.programs.final)
    made = (*range(at["leaving"], at["results"]), *range(at["collected"], at["end"]))
    return [j for j in made if j in final]


def _sends_of(planned: PlannedLayer, phase: int) -> list[int]:
    at = _starts(planned)["sends"] + sum(map(len, planned.made.share.sends[:phase]))
    return list(range(at, at + len(planned.made.share.sends[phase])))


def _results_of(planned: PlannedLayer) -> list[int]:
    at = _starts(planned)
    return [*range(at["leaving"]), *range(at["results"], at["sends"])]
