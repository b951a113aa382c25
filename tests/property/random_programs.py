"""Small training steps drawn at random out of ruled primitives: grad, scan, random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw
from oracle.problem import Problem

ROWS, NUM_STEPS = 16, 2
SIZES = (4, 8)
VOCAB = 16
# More elements a row than this are reduced before the program goes on.
MAX_ROW_ELEMENTS = 128

Values = dict[str, Any]


class Drawer:
    """Applies drawn operations to values whose dim 0 is the batch; lives for one trace."""

    def __init__(self, rng: random.Random, params: Values, batch: Values, key: jax.Array) -> None:
        self.rng, self.params, self.batch, self.key = rng, params, batch, key
        self.pool: list[jax.Array] = [batch["x"]]

    def next_key(self) -> jax.Array:
        self.key, now = jax.random.split(self.key)
        return now

    def inner(self, x: jax.Array) -> int:
        """A dim that is not the batch."""
        return self.rng.randrange(1, x.ndim)

    def product(self, x: jax.Array) -> jax.Array:
        if x.shape[-1] not in SIZES:
            return x
        return x @ self.params[f"w{x.shape[-1]}{self.rng.choice(SIZES)}"]

    def row_product(self, x: jax.Array) -> jax.Array:
        """Rows against rows: both operands have the batch."""
        flat = x.reshape(ROWS, -1)[:, :8]
        return jnp.einsum("ni,nj->nij", flat, self.batch["x"][:, :4])

    def smooth(self, x: jax.Array) -> jax.Array:
        return self.rng.choice([jnp.tanh, jnp.sin, jax.nn.sigmoid, jax.nn.gelu])(x)

    def bias(self, x: jax.Array) -> jax.Array:
        size = x.shape[-1]
        return x + self.params[f"b{size}"] if size in SIZES else x * 0.5

    def softmax(self, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x, axis=self.inner(x))

    def normalise(self, x: jax.Array) -> jax.Array:
        axis = self.inner(x)
        centred = x - x.mean(axis, keepdims=True)
        return centred * jax.lax.rsqrt(x.var(axis, keepdims=True) + 0.1)

    def transpose(self, x: jax.Array) -> jax.Array:
        order = list(range(1, x.ndim))
        self.rng.shuffle(order)
        return x.transpose(0, *order)

    def batch_moves(self, x: jax.Array) -> jax.Array:
        """The batch as the last dim for a moment."""
        return jnp.cumsum(jnp.moveaxis(x, 0, -1), axis=0).transpose(x.ndim - 1, *range(x.ndim - 1))

    def reshape(self, x: jax.Array) -> jax.Array:
        if x.ndim > 2:
            return x.reshape(ROWS, x.shape[1] * x.shape[2], *x.shape[3:])
        return x.reshape(ROWS, 2, -1) if x.shape[1] % 2 == 0 else x

    def slice(self, x: jax.Array) -> jax.Array:
        size = x.shape[-1]
        return x[..., : size // 2] if size % 2 == 0 else x

    def strided(self, x: jax.Array) -> jax.Array:
        return x[..., ::-1][..., ::2]

    def concatenate(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, 2.0 * x], axis=self.inner(x))

    def pad(self, x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 3)])

    def reduce(self, x: jax.Array) -> jax.Array:
        kept = x if x.ndim > 2 else x[:, :, None]
        return self.rng.choice([jnp.sum, jnp.max, jnp.mean])(kept, axis=self.inner(x))

    def cumulate(self, x: jax.Array) -> jax.Array:
        return jnp.cumsum(x, axis=self.inner(x)) / x.shape[1]

    def sort(self, x: jax.Array) -> jax.Array:
        return jnp.sort(x, axis=self.inner(x))

    def dropout(self, x: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(self.next_key(), 0.7, x.shape), x / 0.7, 0.0)

    def noise(self, x: jax.Array) -> jax.Array:
        return x + 0.1 * jax.random.normal(self.next_key(), x.shape)

    def masked(self, x: jax.Array) -> jax.Array:
        mask = self.batch["mask"].reshape(ROWS, *[1] * (x.ndim - 1))
        return jnp.where(mask, x, -x)

    def embed(self, x: jax.Array) -> jax.Array:
        found = self.params["table"][self.batch["y"]]
        return found + x.reshape(ROWS, -1).sum(1, keepdims=True)

    def pick(self, x: jax.Array) -> jax.Array:
        """One element of each row, by position."""
        flat = x.reshape(ROWS, -1)
        chosen = flat[jnp.arange(ROWS), self.batch["y"] % flat.shape[1]]
        return chosen[:, None] * self.params["b4"]

    def take_along(self, x: jax.Array) -> jax.Array:
        flat = x.reshape(ROWS, -1)
        index = self.batch["y"][:, None] % flat.shape[1]
        return jnp.take_along_axis(flat, index, axis=1) + self.params["b8"]

    def add_rows(self, x: jax.Array) -> jax.Array:
        """A scatter-add inside each row."""
        flat = x.reshape(ROWS, -1)
        update = jnp.zeros((ROWS, VOCAB)).at[jnp.arange(ROWS), self.batch["y"]].add(flat[:, 0])
        return update + self.params["table"].sum(1)

    def layers(self, x: jax.Array) -> jax.Array:
        h = jnp.tile(x.reshape(ROWS, -1)[:, :1], (1, 8))
        key = self.next_key()

        def layer(carry: Any, w: jax.Array) -> Any:
            h, key = carry
            key, now = jax.random.split(key)
            h = jnp.tanh(h @ w) * jax.random.bernoulli(now, 0.8, h.shape)
            return (h, key), h.sum(-1)

        (h, _), sums = jax.lax.scan(layer, (h, key), self.params["stack"])
        return h + sums.T.sum(-1, keepdims=True)

    def rematerialised(self, x: jax.Array) -> jax.Array:
        return jax.checkpoint(lambda v: jnp.tanh(self.bias(v)) ** 2)(x)

    def combine(self, x: jax.Array) -> jax.Array:
        other = self.rng.choice(self.pool)
        return (
            x * other
            if x.shape == other.shape
            else x * other.reshape(ROWS, -1)[:, :1].reshape(ROWS, *[1] * (x.ndim - 1))
        )

    def square(self, x: jax.Array) -> jax.Array:
        return x**2 / (1.0 + jax.lax.stop_gradient(jnp.abs(x)))

    def run(self, count: int) -> jax.Array:
        """Draw and apply operations; the last value."""
        drawn: list[Callable[[jax.Array], jax.Array]] = [getattr(self, name) for name in OPERATIONS]
        for _ in range(count):
            x = self.rng.choice(self.pool[-2:])
            x = self.rng.choice(drawn)(x)
            if x.size > ROWS * MAX_ROW_ELEMENTS:
                x = x.reshape(ROWS, -1, 4).mean(1)
            self.pool.append(x if x.ndim > 1 else x[:, None])
        return self.pool[-1]


OPERATIONS = (
    *("product", "product", "product", "row_product", "smooth", "bias", "softmax", "normalise"),
    *("transpose", "batch_moves", "reshape", "slice", "strided", "concatenate", "pad", "reduce"),
    *("cumulate", "sort", "dropout", "noise", "masked", "embed", "pick", "take_along"),
    *("add_rows", "layers", "rematerialised", "combine", "square"),
)


def random_problem(seed: int) -> Problem:
    """A training step drawn by a seed: SGD on a separable loss with metrics."""
    numbers = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(numbers.normal(size=shape) / 2)  # noqa: E731
    params = {f"w{a}{b}": draw(a, b) for a in SIZES for b in SIZES}
    params |= {f"b{a}": draw(a) for a in SIZES}
    params |= {"stack": draw(3, 8, 8), "table": draw(VOCAB, 8)}
    length = 6 + seed % 5

    def step(state: Values, batch: Values) -> Any:
        key, now = jax.random.split(state["key"])

        def loss(p: Values) -> Any:
            rng = random.Random(seed)
            drawer = Drawer(rng, p, batch, now)
            each = (drawer.run(length).reshape(ROWS, -1) ** 2).mean(-1)
            mask = batch["mask"]
            value = rng.choice(
                [
                    lambda: each.mean(),
                    lambda: each.sum() / 8,
                    lambda: (each * mask).sum() / mask.sum(),
                    lambda: each.mean() + 0.1 * sum(jnp.sum(leaf**2) for leaf in p.values()),
                ]
            )()
            # Rows may be all alike: rounding must not decide which are above their mean.
            return value, {"max": each.max(), "hits": (each > 1.01 * value).sum(), "rows": each}

        (value, aux), grads = mw.value_and_grad(loss, has_aux=True)(state["params"])
        new = jax.tree.map(lambda p, g: p - 0.05 * g, state["params"], grads)
        return {"key": key, "params": new, "count": state["count"] + 1}, (value, aux)

    state = {"key": jax.random.key(seed), "params": params, "count": jnp.int32(0)}
    calls = tuple(
        (
            {
                "x": numbers.normal(size=(ROWS, 8)),
                "y": numbers.integers(0, VOCAB, ROWS, dtype=np.int32),
                "mask": numbers.random(ROWS) < 0.7,
            },
        )
        for _ in range(NUM_STEPS)
    )
    return Problem(step=step, state=state, calls=calls)
