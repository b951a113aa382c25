"""Where the equations between two stages of a forward pass run: so that the fewest bytes cross.

An equation that reads no parameter, as the statistics of a layer norm, may as well run on a later
stage than its operands, up to the one that reads its results.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from meshwise.graph.minimum_cut import INFINITE, source_side
from meshwise.jax_compat.jaxprs import Aval, Eqn, Var
from meshwise.trace.layers.equations import variables


def cheapest_places(
    equations: Sequence[Eqn], places: Sequence[int | None], fixed: Collection[int]
) -> list[int | None]:
    """Return the stages of equations, with the least bytes over each boundary in turn.

    Args:
        equations: In their order.
        places: The stage of each: the first that it can run on; None where it may be anywhere.
        fixed: Equations that stay on their stage, as those that read its parameters.

    Returns:
        The same or later stages.
    """
    found = list(places)
    for stage in sorted({p for p in places if p is not None})[:-1]:
        for i in _better_later(equations, found, stage, fixed):
            found[i] = None
        # Readers come after what they read.
        readers: dict[Var, int] = {}
        for i in reversed(range(len(equations))):
            eqn = equations[i]
            if found[i] is None and places[i] is not None:
                found[i] = min(readers[v] for v in eqn.outvars if v in readers)
            place = found[i]
            if place is not None:
                for v in variables(eqn.invars):
                    readers[v] = min(place, readers.get(v, place))
    return found


def _better_later(
    equations: Sequence[Eqn], places: Sequence[int | None], stage: int, fixed: Collection[int]
) -> list[int]:
    """Equations of a stage that run after the boundary behind it, as few as are worth it."""
    # Nodes: equations, all that comes later, all that came before; then a value sent.
    later, before = len(equations), len(equations) + 1
    maker = {
        v: i if place == stage else before
        for i, (eqn, place) in enumerate(zip(equations, places, strict=True))
        if place is not None and place <= stage
        for v in eqn.outvars
    }
    sent: dict[Var, int] = {}
    edges: dict[tuple[int, int], int] = {}
    stays, count = {before}, before + 1
    for i, (eqn, place) in enumerate(zip(equations, places, strict=True)):
        if place is None or place < stage:
            continue
        here = i if place == stage else later
        read = [v for v in variables(eqn.invars) if v in maker]
        if here == i and (i in fixed or not read):
            stays.add(i)
        for v in read:
            if v not in sent:
                sent[v], count = count, count + 1
                edges[sent[v], maker[v]] = max(1, math.prod(v.aval.shape) * _itemsize(v.aval))
            edges[here, sent[v]] = INFINITE
            # What is made later is read later.
            if maker[v] != before:
                edges[maker[v], here] = INFINITE
    # Backwards, so that few equations move.
    moved = source_side(count, edges, [later], stays)
    return [i for i in moved if i < later]


def _itemsize(aval: Aval) -> int:
    return int(getattr(aval.dtype, "itemsize", 4))
