"""Parameters and dense FLOP of a model as JAX sees it."""

from __future__ import annotations

import math
from typing import Any

import jax


def count(params: Any) -> int:
    """Elements of all leaves."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def dense_flop(jaxpr: Any) -> int:
    """FLOP of all dense products of a jaxpr; scan bodies count once an iteration."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            ((contract, _), _) = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[d] for d in contract)
            total += 2 * depth * math.prod(eqn.outvars[0].aval.shape)
        trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, jax.extend.core.ClosedJaxpr):
                    total += trips * dense_flop(inner.jaxpr)
                elif isinstance(inner, jax.extend.core.Jaxpr):
                    total += trips * dense_flop(inner)
    return total
