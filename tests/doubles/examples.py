"""A step on rows that can be told apart, and sources that tell what was read of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw

WIDTH = 8
NUM_LAYERS = 4
ROWS = 8
NUM_EXAMPLES = 22


def train_step(state: Any, batch: Any) -> Any:
    """Layers that see all of `x`, and `y` at the end."""

    def loss_fn(params: Any) -> Any:
        h = batch["x"]
        for w in params:
            h = jnp.tanh(h @ w)
        return jnp.mean((h - batch["y"]) ** 2)

    loss, grads = mw.value_and_grad(loss_fn)(state)
    return jax.tree.map(lambda w, g: w - 0.5 * g, state, grads), loss


def new_state() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(NUM_LAYERS)]


def batch_spec(rows: int = ROWS) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct((rows, WIDTH), np.float32) for name in ("x", "y")}


def example(index: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(index)
    return {name: rng.normal(size=WIDTH).astype(np.float32) for name in ("x", "y")}


class Counting:
    """A source of whole examples, or of one part, that counts what it is asked for."""

    def __init__(self, part: str | None = None, size: int = NUM_EXAMPLES) -> None:
        self.part, self.size = part, size
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return example(index) if self.part is None else example(index)[self.part]


def whole_batch(examples: list[int]) -> dict[str, np.ndarray]:
    found = [example(index) for index in examples]
    return {name: np.stack([each[name] for each in found]) for name in ("x", "y")}


def order(seed: int, count: int, size: int = NUM_EXAMPLES) -> list[int]:
    """What Grain's public pipeline gives."""
    import grain

    shuffled = grain.MapDataset.range(size).shuffle(seed=seed).repeat()
    return [shuffled[place] for place in range(count)]


def expected_losses(batches: list[list[int]]) -> list[float]:
    """On one device."""
    state, found = new_state(), []
    for examples in batches:
        state, loss = jax.jit(train_step)(state, whole_batch(examples))
        found.append(float(loss))
    return found
