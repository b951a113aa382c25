"""Steps whose layers are stacks under `scan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from doubles.layered_steps import CLIPPED, Step, gpt_step
from oracle.problem import quick_jit

Args = tuple[Any, ...]
LAMB = optax.lamb(1e-2, eps=1e-3, weight_decay=0.1)


def scanned_gpt(tx: optax.GradientTransformation = CLIPPED, **changes: Any) -> tuple[Step, Args]:
    return gpt_step(tx, **{"num_layers": 2, "scan_layers": True, **changes})


class _Block(nn.Module):
    """A layer with dropout and a result of its own."""

    @nn.compact
    def __call__(self, x: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = nn.Dense(8, dtype=x.dtype, param_dtype=x.dtype)(x)
        y = nn.Dropout(0.2, deterministic=False)(y)
        return x + jnp.tanh(y) * scale, jnp.sum(y, axis=1)


def second_dim() -> tuple[Step, Args]:
    """Stacks along dim 1, dropout, layers with numbers and results of their own, lamb."""
    model = nn.scan(
        _Block,
        variable_axes={"params": 1},
        split_rngs={"params": True, "dropout": True},
        in_axes=0,
        length=3,
    )()

    apply: Any = model.apply

    def net(params: Any, x: Any) -> Any:
        rngs = {"dropout": jax.random.fold_in(jax.random.key(1), 2)}
        out, sums = apply({"params": params}, x, jnp.arange(1.0, 4.0), rngs=rngs)
        return out * (1 + jnp.sum(sums, axis=0)[:, None])

    return _made(model, net, LAMB, jnp.arange(1.0, 4.0))


def remat_scan() -> tuple[Step, Args]:
    """Layers in layers, recomputed, weight decay, a norm of all gradients."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return jnp.tanh(nn.Dense(8, param_dtype=x.dtype)(x))

    model = nn.remat_scan(Layer, lengths=(3, 2))()
    tx = optax.chain(optax.clip_by_global_norm(0.05), optax.adamw(1e-2, eps=1e-3))
    return _made(model, lambda p, x: model.apply({"params": p}, x), tx)


def _made(
    model: Any, net: Callable[..., Any], tx: optax.GradientTransformation, *more: Any
) -> tuple[Step, Args]:
    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        loss, grads = mw.value_and_grad(lambda p: jnp.mean((net(p, batch["x"]) - batch["y"]) ** 2))(
            params
        )
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss, updates

    rng = np.random.default_rng(0)
    data = {name: jnp.asarray(rng.normal(size=(8, 8))) for name in "xy"}
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = quick_jit(model.init)(keys, data["x"], *more)["params"]
    return step, ((params, quick_jit(tx.init)(params)), data)
