"""Arguments of a step in the layouts of another step's plan, matched by their paths."""

from __future__ import annotations

from meshwise.errors import PlanError
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.plan.plan import Plan
from meshwise.request.pins import nearest


def followed_layouts(graph: Graph, plan: Plan) -> dict[int, tuple[Layout, ...]]:
    """Layouts by input position of the arguments that are found in a plan.

    Args:
        graph: Of the step that follows.
        plan: Of the other step.

    Raises:
        PlanError: nothing is found, or an argument could follow several that lie differently.
    """
    others = plan.stages[0].arguments
    found: dict[int, tuple[Layout, ...]] = {}
    for position, ident in enumerate(graph.inputs):
        tensor = graph.tensors[ident]
        ranked: dict[int, dict[Layout, str]] = {}
        for argument in others:
            if (argument.shape, argument.dtype) == (tensor.shape, tensor.dtype):
                apart = distance(tensor.name, argument.name)
                if apart is not None:
                    ranked.setdefault(apart, {}).setdefault(argument.layout, argument.name)
        if not ranked:
            continue
        closest = ranked[min(ranked)]
        if len(closest) > 1:
            raise PlanError(
                f"{tensor.name} of shape {list(tensor.shape)} could follow "
                f"{' or '.join(closest.values())}, which lie differently; pass it under the path "
                "that it has in the other step, or pin it"
            )
        found[position] = tuple(closest)
    if not found:
        names = [argument.name for argument in others]
        mine = [graph.tensors[ident].name for ident in graph.inputs]
        raise PlanError(
            f"no argument of this step follows one of the other: {', '.join(mine[:4])} here, "
            f"{', '.join(nearest(mine[0] if mine else '', names, 4))} there; pass the state of the "
            "other step, or parts of it"
        )
    return found


def distance(name: str, other: str) -> int | None:
    """0 for the same path; how much longer a path is that ends alike; None for another."""
    if name == other:
        return 0
    tail, longer = _without_number(name), _without_number(other)
    if not tail or longer[-len(tail) :] != tail:
        return None
    return 1 + len(longer) - len(tail)


def _without_number(name: str) -> list[str]:
    first, *rest = name.split("/")
    return rest if first.isdecimal() else [first, *rest]
