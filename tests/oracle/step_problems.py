"""Steps of every shape that users write, as problems for the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw
from oracle.problem import Problem
from oracle.tolerances import NUM_STEPS

ROWS, WIDTH, CLASSES = 16, 8, 8


def weights(*shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {f"w{i}": jnp.asarray(rng.normal(size=s) / 3) for i, s in enumerate(shapes)}


def _rows(*shape: int, seed: int = 1) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=shape) for _ in range(NUM_STEPS))


def _labels(num: int = ROWS, seed: int = 2) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(0, CLASSES, num, dtype=np.int32) for _ in range(NUM_STEPS))


def sgd(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _batches(**leaves: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    return tuple(({k: v[i] for k, v in leaves.items()},) for i in range(NUM_STEPS))


def plain(loss: Callable[..., Any], params: Any, calls: Any, **more: Any) -> Problem:
    """`(params, *args) -> (params, loss)` by gradient descent."""

    def step(state, *args, **kwargs):
        value, grads = mw.value_and_grad(loss)(state, *args, **kwargs)
        return sgd(state, grads), value

    return Problem(step=step, state=params, calls=calls, **more)


XY = _batches(x=_rows(ROWS, WIDTH), y=_labels())


def two_layers(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w0"]) @ p["w1"]


def nll(logits: Any, y: Any) -> Any:
    """Without the scatter of `looked_up_nll`, so that a step may be compiled quickly."""
    return -jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, CLASSES), axis=-1)


def looked_up_nll(logits: Any, y: Any) -> Any:
    return -jax.nn.log_softmax(logits)[jnp.arange(y.shape[0]), y]


MLP = ((WIDTH, 16), (16, CLASSES))


def aux_outputs() -> Problem:
    def loss(p, batch):
        logits = two_layers(p, batch["x"])
        value = jnp.mean(looked_up_nll(logits, batch["y"]))
        right = logits.argmax(-1) == batch["y"]
        return value, {"right": right.sum(), "per_row": logits.sum(-1), "nothing": None}

    def step(state, batch):
        (value, aux), grads = mw.value_and_grad(loss, has_aux=True)(state, batch)
        return sgd(state, grads), (value, aux)

    return Problem(step=step, state=weights(*MLP), calls=XY)


def several_batch_arguments() -> Problem:
    def loss(p, x, scale, y):
        return jnp.mean(nll(two_layers(p, x) * scale, y))

    calls = tuple((x, np.float64(1.5), y) for x, y in zip(_rows(16, 8), _labels(), strict=True))
    return plain(loss, weights(*MLP), calls, options={"batch_argnums": (1, 3)})


def batch_dim_not_0() -> Problem:
    def loss(p, x, y):
        return jnp.mean((jnp.einsum("tbi,io->bto", x, p["w0"]) - y) ** 2)

    calls = tuple(zip(_rows(4, ROWS, WIDTH), _rows(ROWS, 4, 16, seed=5), strict=True))
    options = {"batch_argnums": (1, 2), "batch_dims": (1, 0)}
    return plain(loss, weights((WIDTH, 16)), calls, options=options)


def batch_dims_as_a_tree() -> Problem:
    def loss(p, batch):
        return jnp.mean((batch["x"].T @ p["w0"] * batch["temperature"]) ** 2)

    leaves = _batches(x=_rows(WIDTH, ROWS), temperature=_rows(16))
    return plain(
        loss, weights(MLP[0]), leaves, options={"batch_dims": {"x": 1, "temperature": None}}
    )


def keyword_arguments() -> Problem:
    def loss(p, batch, *, weight, offsets):
        return weight * jnp.mean(nll(two_layers(p, batch["x"]) + offsets["all"], batch["y"]))

    kwargs = {"weight": np.float64(0.5), "offsets": {"all": np.arange(8.0)}}
    return plain(loss, weights(*MLP), XY, kwargs=kwargs)


def static_arguments() -> Problem:
    def step(state, activation, batch, power):
        def loss(p):
            h = getattr(jnp, activation)(batch["x"] @ p["w0"])
            return jnp.mean(nll(h @ p["w1"], batch["y"]) ** power)

        value, grads = mw.value_and_grad(loss)(state)
        return sgd(state, grads), value

    calls = tuple(("tanh", batch, 2) for (batch,) in XY)
    options = {"static_argnums": (1, 3), "batch_argnums": 2}
    return Problem(step=step, state=weights(*MLP), calls=calls, options=options)


def nested_jit() -> Problem:
    layer = jax.jit(lambda w, x: jax.jit(jnp.tanh)(x @ w))

    def loss(p, batch):
        return jax.jit(lambda z, y: jnp.mean(nll(z, y)))(
            layer(p["w0"], batch["x"]) @ p["w1"], batch["y"]
        )

    return plain(loss, weights(*MLP), XY)


@jax.custom_jvp
def _clipped(x: Any) -> Any:
    return jnp.clip(x, -1.0, 1.0)


@_clipped.defjvp
def _clipped_jvp(primals: Any, tangents: Any) -> Any:
    return _clipped(*primals), 0.5 * tangents[0]


@jax.custom_vjp
def _scaled_back(x: Any) -> Any:
    return x * 2.0


_scaled_back.defvjp(lambda x: (x * 2.0, jnp.sign(x)), lambda s, g: (3.0 * g * s,))


def custom_derivatives() -> Problem:
    def loss(p, batch):
        h = _scaled_back(_clipped(batch["x"] @ p["w0"]))
        return jnp.mean(nll(h @ p["w1"], batch["y"]))

    return plain(loss, weights(*MLP), XY)


def rematerialised() -> Problem:
    def loss(p, batch):
        h = jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w)))(p["w0"], batch["x"])
        return jnp.mean(nll(h @ p["w1"], batch["y"]))

    return plain(loss, weights(*MLP), XY)


def scanned_layers() -> Problem:
    def loss(p, batch):
        h, norms = jax.lax.scan(
            lambda h, w: (jnp.tanh(h @ w), jnp.sum(h * h, -1)), batch["x"], p["w0"]
        )
        return jnp.mean(nll(h @ p["w1"], batch["y"])) + 1e-2 * jnp.mean(norms)

    return plain(loss, weights((3, WIDTH, WIDTH), (WIDTH, CLASSES)), XY)


def scanned_time() -> Problem:
    """A recurrent net: xs carry the batch in dim 1, weights are constants of the loop."""

    def loss(p, batch):
        def cell(h, x):
            h = jnp.tanh(x @ p["w0"] + h @ p["w1"])
            return h, h @ p["w2"]

        init = jnp.zeros((batch["x"].shape[1], WIDTH))
        _, ys = jax.lax.scan(cell, init, batch["x"], reverse=True)
        return jnp.mean((ys - batch["y"]) ** 2)

    calls = _batches(x=_rows(5, ROWS, WIDTH), y=_rows(5, ROWS, 4, seed=6))
    return plain(
        loss, weights((WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 4)), calls, options={"batch_dims": 1}
    )


def frozen_parameters() -> Problem:
    def step(state, batch):
        def loss(trained):
            return jnp.mean(nll(two_layers({**state["frozen"], **trained}, batch["x"]), batch["y"]))

        value, grads = mw.value_and_grad(loss)(state["trained"])
        return {"trained": sgd(state["trained"], grads), "frozen": state["frozen"]}, value

    params = weights(*MLP)
    state = {"trained": {"w1": params["w1"]}, "frozen": {"w0": params["w0"]}}
    return Problem(step=step, state=state, calls=XY)


def tied_embedding() -> Problem:
    def loss(p, batch):
        h = jnp.tanh(p["w0"][batch["y"]] @ p["w1"])
        return jnp.mean(nll(h @ p["w0"].T, jnp.roll(batch["y"], 1, axis=-1)))

    def flat(p, batch):
        return jnp.mean(jax.vmap(lambda y: loss(p, {"y": y}))(batch["y"]))

    calls = _batches(y=tuple(y.reshape(ROWS, 4) for y in _labels(4 * ROWS)))
    return plain(flat, weights((CLASSES, WIDTH), (WIDTH, WIDTH)), calls)


def integer_state_and_keys() -> Problem:
    def step(state, batch):
        key, now = jax.random.split(state["key"])

        def loss(p):
            h = jnp.tanh(batch["x"] @ p["w0"])
            h = h * jax.random.bernoulli(jax.random.fold_in(now, state["count"]), 0.7, h.shape)
            h = h + 0.1 * jax.random.normal(now, h.shape)
            return jnp.mean(nll(h @ p["w1"], batch["y"]))

        value, grads = mw.value_and_grad(loss)(state["params"])
        rate = jnp.where(state["count"] > 0, 0.1, 0.2)
        params = jax.tree.map(lambda p, g: p - rate * g, state["params"], grads)
        rare = jnp.where(state["count"] % 2 == 0, state["rare"] + 1, state["rare"])
        new = {"key": key, "count": state["count"] + 1, "params": params, "rare": rare}
        return new, (value, state["count"])

    state = {
        "key": jax.random.key(3),
        "count": jnp.int32(0),
        "rare": jnp.arange(8, dtype=jnp.uint8),
        "params": weights(*MLP),
    }
    return Problem(step=step, state=state, calls=XY)


def raw_key_words() -> Problem:
    """The older `PRNGKey`: two words of uint32 in the state."""

    def step(state, batch):
        key, now = jax.random.split(state["key"])

        def loss(p):
            h = batch["x"] @ p["w0"]
            h = h * jax.random.bernoulli(now, 0.5, h.shape)
            return jnp.mean(nll(h @ p["w1"], batch["y"]))

        value, grads = mw.value_and_grad(loss)(state["params"])
        return {"key": key, "params": sgd(state["params"], grads)}, value

    return Problem(
        step=step, state={"key": jax.random.PRNGKey(3), "params": weights(*MLP)}, calls=XY
    )


def indexed_by_position() -> Problem:
    def loss(p, batch):
        log_probs = jax.nn.log_softmax(two_layers(p, batch["x"]))
        return -log_probs[jnp.arange(ROWS), batch["y"]].mean()

    return plain(loss, weights(*MLP), XY)


def indexed_by_two_positions() -> Problem:
    def loss(p, batch):
        log_probs = jax.nn.log_softmax(batch["x"] @ p["w0"])
        i, j = jnp.arange(ROWS)[:, None], jnp.arange(4)[None, :]
        return -log_probs[i, j, batch["y"]].mean()

    calls = _batches(
        x=_rows(ROWS, 4, WIDTH), y=tuple(y.reshape(ROWS, 4) for y in _labels(4 * ROWS))
    )
    return plain(loss, weights((WIDTH, CLASSES)), calls)


def convolution() -> Problem:
    def loss(p, batch):
        h = jax.lax.conv_general_dilated(batch["x"], p["w0"], (1,), "SAME")
        return jnp.mean(jnp.tanh(h) ** 2)

    return plain(loss, weights((4, 3, 3)), _batches(x=_rows(ROWS, 3, 8)))


def grad_alone() -> Problem:
    def step(state, batch):
        grads, aux = mw.grad(
            lambda p, b: (jnp.mean(nll(two_layers(p, b["x"]), b["y"])), b["x"].sum()), has_aux=True
        )(state, batch)
        return sgd(state, grads), aux

    return Problem(step=step, state=weights(*MLP), calls=XY)


def gradients_of_two_arguments() -> Problem:
    def step(state, batch):
        def loss(w0, x, w1):
            return jnp.mean(nll(jnp.tanh(x @ w0) @ w1, batch["y"]))

        value, (g0, g1) = mw.value_and_grad(loss, argnums=(0, -1))(
            state["w0"], batch["x"], state["w1"]
        )
        return sgd(state, {"w0": g0, "w1": g1}), value

    return Problem(step=step, state=weights(*MLP), calls=XY)


def two_losses() -> Problem:
    """Two calls of value_and_grad in a step, the second at the parameters of the first."""

    def step(state, batch):
        def loss(p, sign):
            return jnp.mean(nll(sign * two_layers(p, batch["x"]), batch["y"]))

        first, grads = mw.value_and_grad(loss)(state, 1.0)
        return sgd(state, grads), first + mw.value_and_grad(loss)(state, -1.0)[0]

    return Problem(step=step, state=weights(*MLP), calls=XY)


def gradient_penalty() -> Problem:
    """A loss that holds a gradient itself."""

    def loss(p, batch):
        def score(x):
            return jnp.sum(jnp.tanh(x @ p["w0"]) @ p["w1"])

        return jnp.mean(jnp.sum(mw.grad(score)(batch["x"]) ** 2, axis=-1))

    return plain(loss, weights(*MLP), XY)


def clipped_gradients() -> Problem:
    def step(state, batch):
        value, grads = mw.value_and_grad(
            lambda p: jnp.mean(nll(two_layers(p, batch["x"]), batch["y"]))
        )(state)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.05 / norm), grads)
        return sgd(state, grads), (value, norm)

    return Problem(step=step, state=weights(*MLP), calls=XY)


def state_with_odd_leaves() -> Problem:
    """Sizes that no axis divides, empty containers, a scalar and an unused leaf."""

    def step(state, batch):
        value, grads = mw.value_and_grad(
            lambda p: jnp.mean((batch["x"] @ p["w0"] * p["w1"]) ** 2) + p["w2"] ** 2
        )(state["params"])
        new = {"params": sgd(state["params"], grads), "none": None, "empty": ()}
        return {**new, "unused": state["unused"]}, value

    state = {
        "params": weights((WIDTH, 7), (7,), ()),
        "none": None,
        "empty": (),
        "unused": jnp.arange(3),
    }
    return Problem(step=step, state=state, calls=XY)


PROBLEMS = (
    aux_outputs,
    several_batch_arguments,
    batch_dim_not_0,
    batch_dims_as_a_tree,
    keyword_arguments,
    static_arguments,
    nested_jit,
    custom_derivatives,
    rematerialised,
    scanned_layers,
    scanned_time,
    frozen_parameters,
    tied_embedding,
    integer_state_and_keys,
    raw_key_words,
    indexed_by_position,
    indexed_by_two_positions,
    convolution,
    grad_alone,
    gradients_of_two_arguments,
    two_losses,
    gradient_penalty,
    clipped_gradients,
    state_with_odd_leaves,
)
