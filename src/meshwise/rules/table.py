"""The table: primitive name -> rule.  Without a rule it runs replicated, where I6 allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule, replicated_rule
from meshwise.rules import (
    along_dim,
    callbacks,
    cudnn,
    elementwise,
    identity,
    kernel,
    random,
    reduce,
    shape,
    whole,
)
from meshwise.rules.attention import operators as attention
from meshwise.rules.indexed import gather, scatter, slicing
from meshwise.rules.narrow import is_narrow, without_sums
from meshwise.rules.pallas import operators as pallas
from meshwise.rules.primitive import Equation, PrimitiveRule
from meshwise.rules.products import dot_general, experts, linalg, ragged_dot
from meshwise.rules.windows import convolution, reduce_window

# What a reduction of booleans means: their sum is never 2.
_OF_BOOLEANS = {SUM: "or", "max": "or", "min": "and"}

_ROUNDED = "sums of {} parts would be rounded; let the result be wider, by preferred_element_type"


def _has_no_sum(aval: ShapedArray) -> bool:
    """Return whether values of a type cannot be partial sums: booleans and random keys."""
    return bool(aval.dtype == np.bool_ or jnp.issubdtype(aval.dtype, jax.dtypes.extended))


def _typed(row: PrimitiveRule) -> PrimitiveRule:
    """Return the row with loops and linear groups that suit the types of the values."""

    def rule(eqn: Equation) -> LoopRule:
        found = row.rule(eqn)
        if any(is_narrow(aval.dtype) for aval in eqn.out_avals):
            return without_sums(found, _ROUNDED.format(eqn.out_avals[0].dtype))
        if not any(_has_no_sum(aval) for aval in eqn.out_avals):
            return found
        loops = tuple(
            replace(loop, kind=_OF_BOOLEANS.get(loop.kind, loop.kind)) for loop in found.loops
        )
        return replace(found, loops=loops, linear=())

    return replace(row, rule=rule)


_FAMILIES = (
    along_dim,
    attention,
    callbacks,
    convolution,
    cudnn,
    dot_general,
    elementwise,
    experts,
    gather,
    identity,
    kernel,
    linalg,
    pallas,
    ragged_dot,
    random,
    reduce,
    reduce_window,
    scatter,
    shape,
    slicing,
    whole,
)

RULES: Mapping[str, PrimitiveRule] = MappingProxyType(
    {name: _typed(row) for family in _FAMILIES for name, row in family.TABLE.items()}
)


def _unruled(eqn: Equation) -> LoopRule:
    return replicated_rule(
        [len(aval.shape) for aval in eqn.in_avals], [len(aval.shape) for aval in eqn.out_avals]
    )


UNRULED = PrimitiveRule(_unruled)


def primitive_rule(eqn: Equation) -> PrimitiveRule:
    """Return the row of the table for an equation, `UNRULED` if there is none.

    Args:
        eqn: The equation.
    """
    return RULES.get(eqn.name, UNRULED)
