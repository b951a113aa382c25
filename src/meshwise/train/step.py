"""The training step as a user would write it for one device, and the state that it updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.steps import language_model
from meshwise.trace.loss import value_and_grad
from meshwise.train.options import TrainOptions

CLIP_NORM = 1.0
WEIGHT_DECAY = 0.01

Batch = Mapping[str, PyTree]


class TrainState(NamedTuple):
    """All that a step changes.

    Attributes:
        step: Steps done, int32; with the seed it determines the dropout of the next one.
        params: Parameters of the model.
        opt_state: State of the optimizer.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree


def num_parameters(state: TrainState) -> int:
    """Return how many numbers the parameters are.

    Args:
        state: A state, or its shapes.
    """
    return sum(leaf.size for leaf in jax.tree.leaves(state.params))


def learning_rate(options: TrainOptions) -> optax.Schedule:
    """Linear warm-up, then the inverse root of the step.

    It does not depend on the last step, so that a finished run can be extended.
    """

    def rate(count: jax.typing.ArrayLike) -> jax.Array:
        done = (jnp.asarray(count, jnp.float32) + 1) / options.warmup_steps
        return options.learning_rate * jnp.minimum(done, jax.lax.rsqrt(done))

    return rate


def optimizer(options: TrainOptions) -> optax.GradientTransformation:
    """AdamW behind clipping by the global norm."""
    return optax.chain(
        optax.clip_by_global_norm(CLIP_NORM),
        optax.adamw(learning_rate(options), b2=0.99, weight_decay=WEIGHT_DECAY),
    )


def state_creator(options: TrainOptions) -> Callable[[jax.Array], TrainState]:
    """Return the function that makes the first state from a key."""
    model, tx = language_model(options.config()), optimizer(options)

    def create_state(key: jax.Array) -> TrainState:
        params = model.init(key, jnp.zeros((1, options.seq), jnp.int32))["params"]
        return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params))

    return create_state


def train_step_of(
    options: TrainOptions,
) -> Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]:
    """Return the training step, `(state, batch) -> (state, loss)`."""
    model, tx = language_model(options.config()), optimizer(options)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        def loss_fn(params: PyTree) -> jax.Array:
            # Drawn from the seed and the step: a resumed run drops what the whole run would.
            drops: dict[str, Any] = {}
            if options.dropout > 0.0:
                key = jax.random.fold_in(jax.random.key(options.seed), state.step)
                drops = {"deterministic": False, "rngs": {"dropout": key}}
            logits: PyTree = model.apply({"params": params}, batch["x"], **drops)
            return mean_cross_entropy(logits, batch["y"])

        loss, grads = value_and_grad(loss_fn)(state.params)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), loss

    return train_step


def heldout_loss_of(options: TrainOptions) -> Callable[[PyTree, Batch], jax.Array]:
    """Return the loss without dropout, `(params, batch) -> loss`."""
    model = language_model(options.config())

    def heldout_loss(params: PyTree, batch: Batch) -> jax.Array:
        logits: PyTree = model.apply({"params": params}, batch["x"])
        return mean_cross_entropy(logits, batch["y"])

    return heldout_loss
