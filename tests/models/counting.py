"""Parameters of a model from their shapes; parameters and dense FLOP as JAX counts them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


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


def random_params(abstract: Any, scale: float = 0.1) -> Any:
    """Numbers for shapes, around 1 for vectors that scale and around 0 for the rest.

    Nothing is compiled, as an `init` would be; no leaf is zero, which could hide a term.
    """
    rng = np.random.default_rng(1)

    def leaf(path: Any, spec: Any) -> jax.Array:
        centre = 1.0 if jax.tree_util.keystr(path).endswith("['scale']") else 0.0
        return jnp.asarray(centre + scale * rng.normal(size=spec.shape), spec.dtype)

    return jax.tree_util.tree_map_with_path(leaf, abstract)
