"""Steps of a user's own, as `meshwise train --step` takes them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw

WIDTH, LAYERS, ROWS = 8, 4, 16
TX = optax.adam(1e-2, eps=1e-3)


def step(state: Any, batch: Any) -> Any:
    def loss_fn(weights: Any) -> Any:
        x = batch["x"]
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean((x - batch["y"]) ** 2)

    loss, grads = mw.value_and_grad(loss_fn)(state["weights"])
    updates, opt_state = TX.update(grads, state["opt"], state["weights"])
    return {"weights": optax.apply_updates(state["weights"], updates), "opt": opt_state}, loss


def told_step(state: Any, batch: Any) -> Any:
    state, loss = step(state, batch)
    return state, {"loss": loss, "root": jnp.sqrt(loss)}


def create(key: Any) -> Any:
    keys = jax.random.split(key, LAYERS)
    weights = [jax.random.normal(k, (WIDTH, WIDTH)) / np.sqrt(WIDTH) for k in keys]
    return {"weights": weights, "opt": TX.init(weights)}


def batch(number: int) -> Any:
    x = np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype(np.float32)
    return {"x": x, "y": np.roll(x, 1, axis=1) / 2}


def made() -> Any:
    return step, create, batch


def of_arrays() -> Any:
    """A state that is there, bound to a device, and a loss among other numbers."""
    state = jax.jit(create)(jax.random.key(0))
    return told_step, jax.device_put(state, jax.devices()[-1]), batch


def with_static_parts() -> Any:
    """Flax's state, whose optimizer is made anew by each call."""
    from flax.training.train_state import TrainState

    def create_state(key: Any) -> Any:
        params = {"w": jax.random.normal(key, (WIDTH, WIDTH))}
        return TrainState.create(apply_fn=jnp.dot, params=params, tx=optax.sgd(1e-2))

    def flax_step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return jnp.mean((state.apply_fn(batch["x"], params["w"]) - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return flax_step, create_state, batch


def of_equinox() -> Any:
    """A module with functions and flags in it, and the state of its optimizer."""
    import equinox as eqx

    tx = optax.adam(1e-2)

    def create_modules(key: Any) -> Any:
        model = eqx.nn.MLP(WIDTH, WIDTH, WIDTH, 2, activation=jax.nn.gelu, key=key)
        return model, tx.init(eqx.filter(model, eqx.is_inexact_array))

    def eqx_step(state: Any, batch: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            return jnp.mean((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2)

        model, opt_state = state
        loss, grads = mw.eqx.filter_value_and_grad(loss_fn)(model)
        updates, opt_state = tx.update(grads, opt_state)
        return (eqx.apply_updates(model, updates), opt_state), loss

    return eqx_step, create_modules, batch


def loss_before() -> Any:
    return (lambda state, batch: told_step(state, batch)[::-1]), create, batch


def loss_before_equinox() -> Any:
    eqx_step, create_modules, batch = of_equinox()
    return (lambda state, batch: eqx_step(state, batch)[::-1]), create_modules, batch


def of_nnx() -> Any:
    """A module whose list has indices as keys, and names beside them."""
    from flax import nnx

    class Layers(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)])

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = jnp.tanh(layer(x))
            return x

    def create_modules(key: Any) -> Any:
        model = Layers(nnx.Rngs(key))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def nnx_step(state: Any, batch: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

        model, optimizer = state
        loss, grads = mw.nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return (model, optimizer), loss

    return nnx_step, create_modules, batch


def with_numbers() -> Any:
    """A state with numbers of Python, whose types are weak."""

    def counted(state: Any, batch: Any) -> Any:
        inner, loss = step(state["inner"], batch)
        inner["weights"] = [state["decay"] * w for w in inner["weights"]]
        return {"inner": inner, "count": state["count"] + 1, "decay": state["decay"]}, loss

    return counted, lambda key: {"inner": create(key), "count": 0, "decay": 0.9}, batch


def with_a_short_batch() -> Any:
    """As the last one of an epoch may be."""
    return step, create, lambda n: {k: x[: 8 if n == 4 else ROWS] for k, x in batch(n).items()}


# What is refused.


def empty_leaf() -> Any:
    return step, lambda key: {"weights": create(key), "unused": jnp.zeros((0, 4))}, batch


def takes_more(size: int) -> Any:
    return step, create, batch


def two() -> Any:
    return step, create


def no_tuple() -> Any:
    return step


def parallelised() -> Any:
    return mw.parallelize(step), create, batch


def no_step() -> Any:
    return 3, create, batch


def step_of_one() -> Any:
    return (lambda state: state), create, batch


def state_of_none() -> Any:
    return step, (lambda: create(jax.random.key(0))), batch


def shapes() -> Any:
    return step, jax.eval_shape(create, jax.random.key(0)), batch


def one_batch() -> Any:
    return step, create, batch(0)


def batch_of_text() -> Any:
    return step, create, (lambda number: {"x": "a text"})


def no_state() -> Any:
    return (lambda state, batch: (state, jnp.float32(0))), {}, batch


def only_state() -> Any:
    return (lambda state, batch: state), create, batch


def three_results() -> Any:
    return (lambda state, batch: (*step(state, batch), None)), create, batch


def other_dtype() -> Any:
    def other(state: Any, batch: Any) -> Any:
        state, loss = step(state, batch)
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), state), loss

    return other, create, batch


def less_state() -> Any:
    return (lambda state, batch: ({"weights": state["weights"]}, jnp.float32(0))), create, batch


def other_types() -> Any:
    def other(state: Any, batch: Any) -> Any:
        state, loss = step(state, batch)
        return {**state, "weights": tuple(state["weights"])}, loss

    return other, create, batch


def loss_of_each_row() -> Any:
    return (lambda state, batch: (state, batch["x"][:, 0])), create, batch


def whole_loss() -> Any:
    return (lambda state, batch: (state, jnp.int32(0))), create, batch


def unnamed_loss() -> Any:
    return (lambda state, batch: (state, {"error": jnp.float32(0)})), create, batch


def loss_and_more() -> Any:
    return (lambda state, batch: (state, (jnp.float32(0), {}))), create, batch


def unequal_rows() -> Any:
    return step, create, lambda n: {**batch(n), "y": batch(n)["y"][:10]}
