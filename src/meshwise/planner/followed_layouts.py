"""Arguments of a step in the layouts of another step's plan, matched by their paths."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from meshwise.errors import PlanError
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.plan.plan import Plan
from meshwise.request.pins import nearest

Place = TypeVar("Place", bound=Hashable)


def followed_layouts(graph: Graph, plan: Plan) -> dict[int, tuple[Layout, ...]]:
    """Return the layouts of the arguments that are found in a plan of one mesh.

    Args:
        graph: The graph of the step that follows.
        plan: The plan of the other step.

    Returns:
        The one layout of each such argument, by input position.

    Raises:
        PlanError: nothing is found, or an argument could follow several that lie differently.
    """
    others = plan.stages[0].arguments
    found: dict[int, tuple[Layout, ...]] = {}
    for position, ident in enumerate(graph.inputs):
        tensor = graph.tensors[ident]
        known = [
            (argument.name, argument.layout)
            for argument in others
            if (argument.shape, argument.dtype) == (tensor.shape, tensor.dtype)
        ]
        closest = followed(tensor.name, tensor.shape, known, ", or pin it")
        if closest is not None:
            found[position] = (closest[1],)
    if not found:
        mine = [graph.tensors[ident].name for ident in graph.inputs]
        raise nothing_followed(mine, [argument.name for argument in others])
    return found


def followed(
    name: str, shape: Sequence[int], others: Sequence[tuple[str, Place]], or_else: str = ""
) -> tuple[str, Place] | None:
    """Return the argument of another step that an argument follows.

    Args:
        name: Path of the argument.
        shape: Its shape.
        others: Paths and places of the arguments of the other step that it could follow; of those
            with one path the first counts.
        or_else: What else the user can do where it could follow several.

    Returns:
        Path and place of the one whose path is closest; None if none ends alike.

    Raises:
        PlanError: several are closest, and lie differently.
    """
    apart = {other: d for other, _ in others if (d := distance(name, other)) is not None}
    least = min(apart.values(), default=None)
    places: dict[str, Place] = {}
    for other, place in others:
        if apart.get(other) == least and other in apart:
            places.setdefault(other, place)
    if len(set(places.values())) > 1:
        different = {place: other for other, place in reversed(places.items())}
        names = [other for other, place in places.items() if different[place] == other]
        raise PlanError(
            f"{name} of shape {list(shape)} could follow {' or '.join(names)}, which lie "
            f"differently; pass it under the path that it has in the other step{or_else}"
        )
    return next(iter(places.items()), None)


def nothing_followed(mine: Sequence[str], others: Sequence[str]) -> PlanError:
    """Return the error of a step none of whose arguments follows one of another step.

    Args:
        mine: Paths of its arguments.
        others: Paths of the arguments of the other step.
    """
    if not others:
        return PlanError(
            "the stages of the step that is followed keep no state, since it donates none "
            "(donate_argnums=()): give it donate_argnums='auto', or the arguments that it returns "
            "anew"
        )
    return PlanError(
        f"no argument of this step follows one of the other: {', '.join(mine[:4])} here, "
        f"{', '.join(nearest(mine[0] if mine else '', others, 4))} there; pass the state of the "
        "other step, or parts of it"
    )


def distance(name: str, other: str) -> int | None:
    """Return 0 for the same path, how much longer one is that ends alike, None for another."""
    if name == other:
        return 0
    tail, longer = _without_number(name), _without_number(other)
    if not tail or longer[-len(tail) :] != tail:
        return None
    return 1 + len(longer) - len(tail)


def _without_number(name: str) -> list[str]:
    first, *rest = name.split("/")
    return rest if first.isdecimal() else [first, *rest]
