"""Blocks of rows one behind the other: joined, taken apart, padded.

Some models join two blocks of rows along the batch dim and take them apart again, as chosen and
rejected rows, or real and generated ones.  The joined dim has equal parts, and each part has rows
of every micro-batch (`TimeState.parts`).  An equation that cuts or joins only at the edges of parts
does the same to the rows of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax import Array

from meshwise.rules.primitive import Equation, rebind
from meshwise.trace.time.agree import fits
from meshwise.trace.time.state import (
    BLOCKS,
    INSIDE_LOOP,
    SPLIT,
    NodeTime,
    R,
    TimeState,
    split,
)


def of_row_blocks(eqn: Equation, states: Sequence[TimeState]) -> NodeTime | None:
    """Return how an equation that joins or parts blocks of rows runs inside the loop.

    Args:
        eqn: The equation.
        states: States of its operands.

    Returns:
        None if it is no such equation, or cuts through a part.
    """
    found = next((k for k, state in enumerate(states) if state.kind == SPLIT), None)
    if found is None:
        return None
    dim = states[found].dim
    places = _places(eqn, dim)
    if places is None:
        return None
    rows = eqn.in_avals[found].shape[dim] // states[found].parts
    sizes = [aval.shape[dim] for aval in eqn.out_avals]
    given = [aval.shape[dim] if aval.shape else 0 for aval in eqn.in_avals]
    wants = tuple(split(dim, size // rows) if size else R for size in given)
    is_cut = any(place % rows for place in (*places, *sizes, *given))
    if is_cut or not all(sizes) or not all(map(fits, states, wants)):
        return None
    results = tuple(split(dim, size // rows) for size in sizes)
    return NodeTime(region=INSIDE_LOOP, choice=BLOCKS, wants=wants, results=results)


def run_row_blocks(
    eqn: Equation, wants: Sequence[TimeState], num_microbatches: int, operands: Sequence[Array]
) -> list[Array]:
    """Run such an equation on the rows of one micro-batch.

    Args:
        eqn: The equation.
        wants: The states of the operands.
        num_microbatches: B.
        operands: The operands.
    """
    dim = next(want.dim for want in wants if want.kind == SPLIT)

    def local(places: Sequence[int]) -> tuple[int, ...]:
        return tuple(n // num_microbatches if d == dim else n for d, n in enumerate(places))

    params = eqn.params
    match eqn.name:
        case "split":
            sizes = tuple(int(n) // num_microbatches for n in params["sizes"])
            return rebind(eqn, operands, sizes=sizes)
        case "slice":
            start, limit = map(local, (params["start_indices"], params["limit_indices"]))
            return rebind(eqn, operands, start_indices=start, limit_indices=limit)
        case "pad":
            low, high, inner = map(local, zip(*params["padding_config"], strict=True))
            return rebind(eqn, operands, padding_config=tuple(zip(low, high, inner, strict=True)))
        case _:
            return rebind(eqn, operands)


def _places(eqn: Equation, dim: int) -> Sequence[int] | None:
    """Return the places where an equation cuts or pads a dim; None if it does something else."""
    params = eqn.params
    match eqn.name:
        case "concatenate" if params["dimension"] == dim:
            return ()
        case "split" if params["axis"] == dim:
            return params["sizes"]
        case "slice" if params["strides"] is None or params["strides"][dim] == 1:
            return params["start_indices"][dim], params["limit_indices"][dim]
        case "pad" if params["padding_config"][dim][2] == 0:
            return params["padding_config"][dim][:2]
        case _:
            return None
