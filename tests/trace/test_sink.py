"""Generated values move into the loops that use them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshwise.trace.flatten import flatten
from meshwise.trace.sink import with_constants_inside
from oracle.every_strategy import evaluate


def masked_sums(x: jax.Array, w: jax.Array) -> jax.Array:
    mask = (jnp.arange(4)[:, None] >= jnp.arange(4)[None, :]).astype(x.dtype)
    twice = mask * 2.0

    def outer(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        def inner(total: jax.Array, _: None) -> tuple[jax.Array, None]:
            return total + mask @ row + twice @ w, None

        return lax.scan(inner, carry, None, length=2)[0], None

    return lax.scan(outer, jnp.zeros(4, x.dtype), x)[0]


def test_masks_move_in_and_arguments_stay_out() -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    w = np.array([1.0, -2.0, 3.0, 5.0], np.float32)
    program = flatten(jax.make_jaxpr(masked_sums)(x, w))
    (before,) = [node for node in program.nodes if node.bodies]
    assert len(before.inputs) == 5, "three constants: the test needs two masks outside"

    sunk = with_constants_inside(program)
    (after,) = [node for node in sunk.nodes if node.bodies]
    assert len(after.inputs) == 3, "w, the carry, x"
    (inner,) = [node for node in after.bodies[0].nodes if node.bodies]
    assert len(inner.inputs) == 3, "row, w, the carry"
    values = evaluate(sunk, (x, w))
    np.testing.assert_allclose(values[sunk.outputs[0]], masked_sums(x, w), rtol=1e-6)


def test_program_without_loops_is_left_alone() -> None:
    program = flatten(jax.make_jaxpr(lambda x: x + jnp.arange(3.0))(jnp.ones(3)))
    assert with_constants_inside(program) is program
