"""Primitives that are known, small or indivisible: they run whole on every device."""

from __future__ import annotations

from collections.abc import Mapping

from meshwise.graph.loops import LoopRule
from meshwise.rules.loop_list import dims_like
from meshwise.rules.primitive import Equation, PrimitiveRule

_WHY = {
    "rng_bit_generator": "one generator state for the whole draw",
    "cholesky_update": "one matrix; it has no batch dims",
    "rng_uniform": "one stateful draw of the backend",
    "platform_index": "one number: which platform the program is compiled for",
    "empty2": "one value that nothing reads",
}


def whole_rule(eqn: Equation) -> LoopRule:
    """Return no loops."""
    return LoopRule(
        (),
        tuple(dims_like(aval.shape) for aval in eqn.in_avals),
        tuple(dims_like(aval.shape) for aval in eqn.out_avals),
        whole=_WHY[eqn.name],
    )


TABLE: Mapping[str, PrimitiveRule] = {name: PrimitiveRule(whole_rule) for name in _WHY}
