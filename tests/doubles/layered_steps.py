"""Steps that are cut into layers, and what they give on one device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from meshwise.models.gpt import Gpt
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.named import model_config
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step
from meshwise.trace.layers.chain import chain_of
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.split import split_step
from meshwise.trace.step import StepSignature, open_step
from oracle.problem import quick_jit

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
Step = Callable[..., Any]


def layering(
    step: Step, args: tuple[Any, ...], num_layers: int, *, local_statistics: bool = False
) -> Layering:
    opened = open_step(step, args, {}, SIGNATURE)
    split = split_step(opened.closed, opened.batch_dims, opened.aliases, opened.names)
    chain = chain_of(split)
    bounds = np.linspace(0, len(chain.links), num_layers + 1).astype(int).tolist()
    ranges = [(low, high - 1) for low, high in itertools.pairwise(bounds)]
    (size,) = {opened.in_avals[i].shape[dim] for i, dim in opened.batch_dims.items()}
    return Layering(split, chain, ranges, size, local_statistics=local_statistics)


def gpt_step(
    tx: optax.GradientTransformation, *, rows: int = 4, **changes: Any
) -> tuple[Step, tuple[Any, ...]]:
    config = gpt_config(
        "tiny",
        **{"num_layers": 2, "seq_len": 8, "dtype": "float64", "param_dtype": "float64", **changes},
    )
    model = Gpt(config)

    def step(state: Any, batch: Any) -> Any:
        params, opt, key, count = state

        def loss_fn(params: Any) -> Any:
            rngs = {"dropout": jax.random.fold_in(key, count)}
            logits: Any = model.apply(
                {"params": params}, batch["x"], deterministic=not config.dropout, rngs=rngs
            )
            return mean_cross_entropy(logits, batch["y"]), jnp.mean(logits)

        (loss, mean), grads = mw.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt = tx.update(grads, opt, params)
        new = optax.apply_updates(params, updates), opt, key, count + 1
        return new, loss, {"mean": mean, "norm": optax.tree.norm(updates)}

    rng = np.random.default_rng(0)
    tokens = rng.integers(config.vocab_size, size=(2, rows, 8)).astype(np.int32)
    params = quick_jit(model.init)(jax.random.key(0), tokens[0])["params"]
    state = params, quick_jit(tx.init)(params), jax.random.key(1), jnp.int32(3)
    return step, (state, {"x": jnp.asarray(tokens[0]), "y": jnp.asarray(tokens[1])})


def unet_step() -> tuple[Step, tuple[Any, ...]]:
    """Skips over two stages; a parameter of the first layer is read by the last one too."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            shared = self.param("shared", nn.initializers.normal(), (6, 6))
            first = jnp.tanh(x @ shared)
            middle = nn.relu(nn.Dense(8)(first))
            low = jax.nn.softmax(nn.Dense(8)(middle) * 2.0)
            high = nn.Dense(6)(low) + first
            return nn.Dense(3)(jnp.tanh(high @ shared.T)) * jnp.max(middle, axis=1, keepdims=True)

    model, tx = Net(), optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, eps=1e-3))

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        loss, grads = mw.value_and_grad(
            lambda p: jnp.mean((model.apply({"params": p}, batch["x"]) - batch["y"]) ** 2)  # type: ignore
        )(params)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(8, 6)), rng.normal(size=(8, 3))
    params = quick_jit(model.init)(jax.random.key(0), x)["params"]
    return step, ((params, quick_jit(tx.init)(params)), {"x": jnp.asarray(x), "y": jnp.asarray(y)})


def norms_step() -> tuple[Step, tuple[Any, ...]]:
    """Two batch norms with running means."""

    def loss(params: Any, kept: Any, x: Any) -> Any:
        means = []
        for w, mean in zip(params, kept, strict=True):
            x = x @ w
            means.append(0.9 * mean + 0.1 * jnp.mean(x, 0))
            x = jnp.tanh((x - jnp.mean(x, 0)) * jax.lax.rsqrt(jnp.var(x, 0) + 1e-5))
        return jnp.mean((x @ params[0]) ** 2), means

    def step(state: Any, x: Any) -> Any:
        params, kept = state
        (value, kept), grads = mw.value_and_grad(loss, has_aux=True)(params, kept, x)
        return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), kept), value

    rng = np.random.default_rng(3)
    weights = [jnp.asarray(rng.normal(size=(6, 6))) for _ in range(2)]
    means = [jnp.asarray(rng.normal(size=6)) for _ in range(2)]
    return step, ((weights, means), jnp.asarray(rng.normal(size=(8, 6))))


def model(
    name: str, tx: optax.GradientTransformation, rows: int, **changes: Any
) -> tuple[Step, tuple[Any, ...]]:
    """The step of a named model in float64, with a state and a batch."""
    config = model_config(name, dtype="float64", param_dtype="float64", **changes)
    made = model_step(config, rows, tx)
    rng = np.random.default_rng(0)

    def data(spec: Any) -> jax.Array:
        is_float = jnp.issubdtype(spec.dtype, jnp.floating)
        drawn = rng.normal(size=spec.shape) if is_float else rng.integers(16, size=spec.shape)
        return jnp.asarray(drawn, spec.dtype)

    state = quick_jit(made.create)(jax.random.key(0))
    return made.step, (state, jax.tree.map(data, made.batch))


CLIPPED = optax.chain(optax.clip_by_global_norm(0.05), optax.adam(1e-2, eps=1e-3))


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-11)


def host(x: Any) -> Any:
    """A copy that no donation takes away."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.array(x)


def assert_replicas_are_equal(array: Any) -> None:
    """All devices that hold the same part of an array hold the same numbers."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    shards: dict[str, Any] = {}
    for shard in array.addressable_shards:
        first = shards.setdefault(str(shard.index), np.asarray(shard.data))
        np.testing.assert_array_equal(np.asarray(shard.data), first)
