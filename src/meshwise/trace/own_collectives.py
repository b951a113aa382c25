"""Operations of an inner `shard_map` that `vmap` refuses or changes, written as others.

These are collectives that JAX has no `vmap` for, and the generators of random bits of XLA, which
draw other numbers for several keys at once than for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from meshwise.jax_compat.jaxprs import Eqn, bind_equation
from meshwise.rules.random import is_threefry

_GATHERS = frozenset({"all_gather", "all_gather_invariant"})
_DRAWS = frozenset({"rng_bit_generator", "random_bits", "random_split", "random_fold_in"})


def lacks_vmap(eqn: Eqn) -> bool:
    """Return whether an equation means something else under `vmap`, or has no meaning there.

    Args:
        eqn: The equation; the axes that it names are those of a `shard_map`.
    """
    name, axes = eqn.primitive.name, _axes(eqn)
    if name in _DRAWS:
        return not is_threefry(eqn.invars[0].aval.dtype)
    if name == "ppermute":
        return True
    return name in {*_GATHERS, "reduce_scatter"} and len(axes) > 1 and not _has_groups(eqn)


def with_vmap(eqn: Eqn, values: Sequence[Array]) -> list[Array]:
    """Run an equation that lacks a `vmap`; call it where its axes are bound.

    Args:
        eqn: The equation.
        values: Its operands.

    Returns:
        Its results.

    Raises:
        NotImplementedError: it cannot be written in another way.
    """
    name, params, axes = eqn.primitive.name, eqn.params, _axes(eqn)
    if name in _DRAWS:
        return list(jax.custom_batching.sequential_vmap(lambda *v: bind_equation(eqn, v))(*values))
    (value,) = values
    if name == "ppermute":
        if len(axes) != 1:
            raise NotImplementedError(f"ppermute over several axes, {axes}")
        return [_permuted(value, axes[0], params["perm"])]
    if name in _GATHERS:
        dim = params["all_gather_dimension"]
        value = value if params["tiled"] else jnp.expand_dims(value, dim)
        for axis in reversed(axes):
            value = lax.all_gather(value, axis, axis=dim, tiled=True)
        return [value]
    dim = params["scatter_dimension"]
    for axis in axes:
        value = lax.psum_scatter(value, axis, scatter_dimension=dim, tiled=True)
    return [value if params["tiled"] else jnp.squeeze(value, dim)]


def _axes(eqn: Eqn) -> tuple[Any, ...]:
    axes = eqn.params.get("axis_name")
    return axes if isinstance(axes, tuple) else (axes,)


def _has_groups(eqn: Eqn) -> bool:
    return eqn.params.get("axis_index_groups") is not None


def _permuted(value: Array, axis: str, pairs: Sequence[tuple[int, int]]) -> Array:
    """Send parts between places of an axis; a place that receives none has zeros."""
    every = range(lax.axis_size(axis))
    sources, targets = ({pair[n] for pair in pairs} for n in (0, 1))
    others = zip(
        (n for n in every if n not in sources),
        (n for n in every if n not in targets),
        strict=True,
    )
    sent = lax.ppermute(value, axis, [*pairs, *others])
    if len(targets) == len(every):
        return sent
    receives = jnp.asarray([n in targets for n in every])[lax.axis_index(axis)]
    return jnp.where(receives, sent, jnp.zeros_like(sent))
