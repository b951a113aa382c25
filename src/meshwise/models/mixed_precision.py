"""Mixed precision as a user writes it: narrow compute, float32 master weights, a loss scale.

Parameters and optimizer state stay in float32.  A model computes in its `dtype` (or on
`cast_floats(params, ...)`), and gradients come back in float32.  bfloat16 needs no more.  float16
has few exponent bits, so small gradients vanish: the loss is multiplied by a scale, the
gradients are divided by it, and a step whose gradients are not finite is skipped:

    def scaled(params):
        loss = loss_fn(params, batch)
        return scale_loss(loss, state.scale), loss

    (_, loss), grads = mw.value_and_grad(scaled, has_aux=True)(state.params)
    grads = unscale(grads, state.scale)
    finite = all_finite(grads)
    params = where_finite(finite, apply(grads), state.params)
    scale = adjust(state.scale, finite)

`with_master_copy(tx)` is the other way to keep the state: narrow parameters and gradients, and a
float32 copy of the parameters in the optimizer's state.

Source: Micikevicius et al. 2018, section 3; the schedule of the scale as NVIDIA Apex has it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from meshwise.jax_compat.jaxprs import PyTree

# Source: NVIDIA Apex, `LossScaler`: first scale, steps until it grows, factors.
FIRST_SCALE = 2.0**16
GROWTH_INTERVAL = 2000
GROWTH = 2.0
BACKOFF = 0.5


class LossScale(NamedTuple):
    """State of a dynamic loss scale.

    Attributes:
        value: The scale, a float32 scalar.
        good_steps: Steps with finite gradients since it last changed, an int32 scalar.
    """

    value: jax.Array
    good_steps: jax.Array


def first_loss_scale(value: float = FIRST_SCALE) -> LossScale:
    """Return the state before the first step."""
    return LossScale(jnp.asarray(value, jnp.float32), jnp.zeros((), jnp.int32))


def cast_floats(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """Return the tree with its floats in `dtype`; integers, booleans and keys stay as they are."""

    def cast(leaf: ArrayLike) -> ArrayLike:
        is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return jnp.asarray(leaf, dtype) if is_float else leaf

    return jax.tree.map(cast, tree)


def scale_loss(loss: jax.Array, scale: LossScale) -> jax.Array:
    """Return the loss to differentiate, at least in float32, which the scale cannot overflow."""
    return loss.astype(jnp.promote_types(loss.dtype, jnp.float32)) * scale.value


def unscale(grads: PyTree, scale: LossScale) -> PyTree:
    """Return the gradients of the loss, from those of the scaled loss."""
    return jax.tree.map(lambda g: g / scale.value.astype(g.dtype), grads)


def all_finite(tree: PyTree) -> jax.Array:
    """Return whether no number of the tree is infinite or NaN, a boolean scalar."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def where_finite(is_finite: jax.Array, updated: PyTree, previous: PyTree) -> PyTree:
    """Return the updated tree, or the previous one where the step is to be skipped."""
    return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), updated, previous)


def adjust(
    scale: LossScale,
    is_finite: jax.Array,
    *,
    growth_interval: int = GROWTH_INTERVAL,
    growth: float = GROWTH,
    backoff: float = BACKOFF,
) -> LossScale:
    """Return the scale of the next step.

    Args:
        scale: The scale of this step.
        is_finite: Whether the gradients of this step were finite.
        growth_interval: After so many finite steps in a row the scale grows.
        growth: By this factor.
        backoff: Its factor after a step that was not finite; it never falls below 1.
    """
    good = jnp.where(is_finite, scale.good_steps + 1, 0)
    grows = good >= growth_interval
    up = jnp.where(grows, scale.value * growth, scale.value)
    down = jnp.maximum(scale.value * backoff, 1.0)
    return LossScale(
        jnp.where(is_finite, up, down).astype(scale.value.dtype), jnp.where(grows, 0, good)
    )


class MasterState(NamedTuple):
    """State of an optimizer that works on wide parameters.

    Attributes:
        master: The parameters in float32.
        inner: State of the optimizer.
    """

    master: PyTree
    inner: PyTree


def with_master_copy(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return the optimizer, on a float32 copy of narrow parameters.

    A step of it leaves the parameters as the copy rounded to their dtype.
    """

    def init(params: PyTree) -> MasterState:
        master = cast_floats(params, jnp.float32)
        return MasterState(master, tx.init(master))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, MasterState]:
        wide = cast_floats(updates, jnp.float32)
        updates, inner = tx.update(wide, state.inner, state.master)
        master: PyTree = optax.apply_updates(state.master, updates)
        moved = jax.tree.map(lambda new, old: new - old.astype(new.dtype), master, params)
        return moved, MasterState(master, inner)

    return optax.GradientTransformation(init, update)
