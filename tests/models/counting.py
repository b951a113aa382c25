"""Parameters of a model from their shapes; parameters and dense FLOP as JAX counts them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def count(params: Any) -> int:
    """Elements of all leaves."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _product(eqn: Any) -> int:
    ((contract, _), _) = eqn.params["dimension_numbers"]
    depth = math.prod(eqn.invars[0].aval.shape[d] for d in contract)
    return 2 * depth * math.prod(eqn.outvars[0].aval.shape)


def _convolution(eqn: Any) -> int:
    kernel = eqn.invars[1].aval.shape
    channels = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
    return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) // channels


def _total(jaxpr: Any, name: str, flop: Callable[[Any], int]) -> int:
    """FLOP of all equations of a name; scan bodies count once an iteration."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == name:
            total += flop(eqn)
        trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, jax.extend.core.ClosedJaxpr):
                    total += trips * _total(inner.jaxpr, name, flop)
                elif isinstance(inner, jax.extend.core.Jaxpr):
                    total += trips * _total(inner, name, flop)
    return total


def dense_flop(jaxpr: Any) -> int:
    """FLOP of all dense products of a jaxpr."""
    return _total(jaxpr, "dot_general", _product)


def conv_flop(jaxpr: Any) -> int:
    """FLOP of all forward convolutions of a jaxpr; padding counts as data."""
    return _total(jaxpr, "conv_general_dilated", _convolution)


def random_params(abstract: Any, scale: float = 0.1) -> Any:
    """Numbers for shapes, around 1 for vectors that scale and around 0 for the rest.

    Nothing is compiled, as an `init` would be; no leaf is zero, which could hide a term.
    """
    rng = np.random.default_rng(1)

    def leaf(path: Any, spec: Any) -> jax.Array:
        centre = 1.0 if jax.tree_util.keystr(path).endswith("['scale']") else 0.0
        return jnp.asarray(centre + scale * rng.normal(size=spec.shape), spec.dtype)

    return jax.tree_util.tree_map_with_path(leaf, abstract)
