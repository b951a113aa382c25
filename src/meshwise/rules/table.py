"""The table: primitive name -> rule.  A primitive that is not in it runs replicated."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwise.graph.loops import LoopRule, replicated_rule
from meshwise.rules import dot_general, elementwise, reduce, shape, slicing
from meshwise.rules.primitive import Equation, PrimitiveRule

RULES: Mapping[str, PrimitiveRule] = MappingProxyType(
    {
        **elementwise.TABLE,
        **dot_general.TABLE,
        **reduce.TABLE,
        **shape.TABLE,
        **slicing.TABLE,
    }
)


def _unruled(eqn: Equation) -> LoopRule:
    return replicated_rule(
        [len(aval.shape) for aval in eqn.in_avals], [len(aval.shape) for aval in eqn.out_avals]
    )


UNRULED = PrimitiveRule(_unruled)


def primitive_rule(eqn: Equation) -> PrimitiveRule:
    """The row of the table for an equation, `UNRULED` if there is none."""
    return RULES.get(eqn.name, UNRULED)
