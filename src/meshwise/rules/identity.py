"""Primitives that return their operands: each operand has loops of its own.

What they say about devices or meshes is for one device and is not carried into the local program.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from meshwise.graph.loops import LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, no_flop


def identity_rule(eqn: Equation) -> LoopRule:
    """Each result follows its own operand; operands share no loop."""
    loops = LoopList()
    maps = tuple(tuple(loops.add_dims(aval.shape)) for aval in eqn.in_avals)
    group = tuple(range(len(maps)))
    return LoopRule(loops.done(), maps, maps, linear=(group,) if group else ())


def local_identity(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the operands."""
    del eqn, shards
    return list(operands)


TABLE = {
    "optimization_barrier": PrimitiveRule(identity_rule, flop=no_flop),
    "name": PrimitiveRule(identity_rule, flop=no_flop),
    "device_put": PrimitiveRule(identity_rule, local_identity, no_flop),
    "sharding_constraint": PrimitiveRule(identity_rule, local_identity, no_flop),
    "reshard": PrimitiveRule(identity_rule, local_identity, no_flop),
    "layout_constraint": PrimitiveRule(identity_rule, local_identity, no_flop),
}
