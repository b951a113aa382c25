"""Random training steps out of every ruled primitive, drawn by Hypothesis.

A program is a list of operations, each with a seed from which it draws operands and attributes.
Programs of rows are functions of one row of the batch under `vmap`, so they separate into
micro-batches; the others mix rows as they like and run as one batch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import meshwise as mw
from oracle.problem import Problem
from property.builders import control, elementwise, products, structure
from property.builders.elementwise import Builder
from property.pool import Pool

ROWS = 16
MESHES = ((8,), (2, 4), (2, 2, 2))
MICROBATCHES = (1, 2, 4)

_FAMILIES = (control, elementwise, products, structure)
ROWWISE: dict[str, Builder] = {k: v for family in _FAMILIES for k, v in family.TABLE.items()}
BUILDERS: dict[str, Builder] = ROWWISE | {
    k: v for family in (control, elementwise, products) for k, v in family.PLAIN_ONLY.items()
}


# Builders that choose among so many kinds, one primitive or more each.
NUM_KINDS = {
    "arg": 2,
    "cumulate": 5,
    "decomposition": 7,
    "factors": 3,
    "fft": 4,
    "noise": 3,
    "reduce": 5,
    "reduce_others": 5,
    "reflectors": 2,
    "scatter": 5,
    "scatter_set": 2,
    "select": 2,
    "solve": 2,
    "sort": 3,
    "top": 2,
    "window": 3,
}

# Series and rejection: each takes many seconds to compile.
COSTLY = ("betainc", "gamma", "igamma", "igamma_grad_a", "igammac", "polygamma", "zeta")


class Kinds(random.Random):
    """No chance: takes the n-th of everything.  A negative seed of an operation."""

    def __init__(self, number: int) -> None:
        """Args: which one, from 1."""
        super().__init__(0)
        self.number = number - 1

    def choice(self, seq: Any) -> Any:
        """The n-th, from the start again after the last."""
        return seq[self.number % len(seq)]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """The n-th of the range."""
        return self.choice(range(start) if stop is None else range(start, stop, step))

    def random(self) -> float:
        """In the first or in the second half."""
        return 0.25 if self.number % 2 else 0.75


@dataclass(frozen=True)
class Drawn:
    """A random program and how to run it.

    Attributes:
        operations: Names of builders, each with its seed.
        rows: A function of one row, under `vmap`.
        num_microbatches: B; 1 unless `rows`.
        mesh: Sizes of the mesh.
        seed: Of the data and of the decision.
    """

    operations: tuple[tuple[str, int], ...]
    rows: bool
    num_microbatches: int
    mesh: tuple[int, ...]
    seed: int


@st.composite
def programs(draw: Any, max_operations: int = 10) -> Drawn:
    """Any program."""
    rows = draw(st.booleans())
    names = sorted(ROWWISE if rows else BUILDERS)
    # Loops, products and the like as often as the many element-wise functions.
    heavy = [name for name in names if name not in (*elementwise.TABLE, *COSTLY)]
    cheap = [name for name in names if name not in COSTLY]
    name = st.one_of(st.sampled_from(heavy), st.sampled_from(cheap), st.sampled_from(names))
    operation = st.tuples(name, st.integers(0, 2**16))
    return Drawn(
        operations=tuple(draw(st.lists(operation, min_size=3, max_size=max_operations))),
        rows=rows,
        num_microbatches=draw(st.sampled_from(MICROBATCHES)) if rows else 1,
        mesh=draw(st.sampled_from(MESHES)),
        seed=draw(st.integers(0, 2**16)),
    )


def run_operations(drawn: Drawn, params: Any, batch: Any, key: jax.Array) -> list[jax.Array]:
    """The values that a program makes, on a whole batch or on one row."""
    values = [*params.values(), *batch.values()]
    pool = Pool(values, key)
    for name, seed in drawn.operations:
        pool.rng = Kinds(-seed) if seed < 0 else random.Random(seed)
        out = BUILDERS[name](pool)
        for value in out if isinstance(out, list | tuple) else [out]:
            pool.add(value)
    return pool.values[len(values) :]


def _loss_of(values: list[jax.Array]) -> Any:
    floats = [v for v in values if v.dtype == jnp.float64 and v.size]
    return sum((jnp.mean(v * v) / 16 for v in floats[-3:]), jnp.zeros(()))


def problem_of(drawn: Drawn) -> Problem:
    """One call of a training step that runs a program, with its gradients and its values."""

    def step(state: Any, batch: Any) -> Any:
        key, now = jax.random.split(state["key"])

        def loss(params: Any) -> Any:
            if not drawn.rows:
                values = run_operations(drawn, params, batch, now)
                return _loss_of(values), values[-4:]

            def row(batch: Any, key: jax.Array) -> Any:
                values = run_operations(drawn, params, batch, key)
                return _loss_of(values), values[-4:]

            each, values = jax.vmap(row)(batch, jax.random.split(now, ROWS))
            return each.mean(), (each, values)

        (value, aux), grads = mw.value_and_grad(loss, has_aux=True)(state["params"])
        params = jax.tree.map(lambda p, g: p - g / 8, state["params"], grads)
        return {"key": key, "params": params}, (value, aux)

    numbers = np.random.default_rng(drawn.seed)
    draw = lambda *shape: jnp.asarray(numbers.integers(-4, 5, shape).astype(np.float64))  # noqa: E731
    params = {"s": draw(), "b": draw(4), "w": draw(8, 4)}
    batch = {
        "m": numbers.random(ROWS) < 0.6,
        "y": numbers.integers(0, 16, ROWS, dtype=np.int32),
        "x": numbers.integers(-4, 5, (ROWS, 4)).astype(np.float64),
    }
    state = {"key": jax.random.key(drawn.seed), "params": params}
    return Problem(step=step, state=state, calls=((batch,),))
