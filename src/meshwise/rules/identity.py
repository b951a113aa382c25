"""Primitives that return their operands: each operand has loops of its own.

What they say about devices or meshes is for one device and is not carried into the local program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

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


# In place of JAX's primitive of this name, which the local program of a device cannot have.
constraint_p = Primitive("sharding_constraint")


@constraint_p.def_abstract_eval
def _same(value: ShapedArray, *, sharding: Any) -> ShapedArray:
    del sharding
    return value


def _passed_on(value: Any, *, sharding: Any) -> Any:
    del sharding
    return value


constraint_p.def_impl(_passed_on)
batching.defvectorized(constraint_p)
mlir.register_lowering(constraint_p, mlir.lower_fun(_passed_on, multiple_results=False))

TABLE = {
    "optimization_barrier": PrimitiveRule(identity_rule, flop=no_flop),
    "name": PrimitiveRule(identity_rule, flop=no_flop),
    "device_put": PrimitiveRule(identity_rule, local_identity, no_flop),
    "sharding_constraint": PrimitiveRule(identity_rule, flop=no_flop),
    "reshard": PrimitiveRule(identity_rule, local_identity, no_flop),
    "layout_constraint": PrimitiveRule(identity_rule, local_identity, no_flop),
}
