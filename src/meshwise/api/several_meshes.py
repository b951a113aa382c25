"""Arguments that lie on several meshes, as the state of a pipeline does, in a step on one mesh."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import jax
from jax.typing import ArrayLike

from meshwise.plan.plan import Plan


def moved_to_one_mesh(leaves: Sequence[ArrayLike], plan: Plan) -> str | None:
    """Return what to tell of a call whose arguments all move to one mesh; None if they do not.

    Args:
        leaves: The flat arguments.
        plan: The plan of the step.
    """
    places = {frozenset(leaf.sharding.device_set) for leaf in leaves if isinstance(leaf, jax.Array)}
    if plan.num_meshes > 1 or all(a & b for a, b in combinations(places, 2)):
        return None
    return (
        "arguments lie on several meshes, as the state of a step with stages does, and every call "
        "moves them to one; method=mw.Follow(train_step) runs this step where they lie"
    )
