"""What an equation does slice by slice is what it does to the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from meshwise.jax_compat.jaxprs import Literal, bind_equation
from meshwise.trace.layers.stacks.families import (
    Family,
    by_member,
    lanes,
    part_of,
    taken_apart,
    whole,
)

X = jnp.arange(1.0, 25.0).reshape(2, 3, 4)
Y = jnp.cos(X)

# With the number of lanes of all its equations.
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "elementwise": (lambda x, y: lax.select(x > 3, x * y, lax.integer_pow(y, 2)), 12),
    "scalar": (
        lambda x, y: lax.add(
            lax.mul(x, 2.0), lax.convert_element_type(y, jnp.int32).astype(x.dtype)
        ),
        12,
    ),
    "stretched": (lambda x, y: lax.mul(x, lax.slice(y, (0, 0, 0), (1, 3, 1))), 3),
    "sums": (lambda x, y: lax.reduce_sum_p.bind(x, axes=(0, 2), out_sharding=None), 3),
    "extremes": (lambda x, y: (jnp.max(x, axis=1), jnp.min(y)), 6),
    "transpose": (lambda x, y: lax.transpose(x, (2, 0, 1)), 3),
    "broadcast": (lambda x, y: lax.broadcast_in_dim(x, (2, 5, 3, 4), (0, 2, 3)), 4),
    "stretching": (lambda x, y: lax.broadcast_in_dim(y[:, :1], (2, 3, 4), (0, 1, 2)), 3),
    "reshape": (lambda x, y: lax.reshape(x, (2, 12)), 1),
    "in the middle": (lambda x, y: lax.reshape(x, (2, 3, 2, 2)), 2),
    "squeeze": (lambda x, y: lax.squeeze(lax.slice(x, (0, 0, 0), (2, 1, 4)), (1,)), 2),
    "products": (lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((0, 2), (0, 2)))), 2),
    "one batch": (lambda x, y: lax.dot_general(x, y, (((2,), (2,)), ((1,), (1,)))), 1),
    "sorted": (lambda x, y: jnp.sort(x), 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_lane_is_the_equation(name: str) -> None:
    fun, number = FUNCTIONS[name]
    jaxpr = jax.make_jaxpr(fun)(X, Y).jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.invars, (X, Y), strict=True))
    found = 0
    for eqn in jaxpr.eqns:
        operands = [v.val if isinstance(v, Literal) else known[v] for v in eqn.invars]
        expected = bind_equation(eqn, operands)
        known.update(zip(eqn.outvars, expected, strict=True))
        for lane in lanes(eqn):
            found += 1
            dims = zip(eqn.invars, lane.operands, strict=True)
            sizes = {v.aval.shape[d] for v, d in dims if d is not None}
            if lane.result is not None:
                sizes.add(eqn.outvars[0].aval.shape[lane.result])
            (count,) = sizes
            made = by_member(eqn, lane, operands, count)
            assert isinstance(made, Family) == (lane.result is not None)
            np.testing.assert_allclose(whole(made), expected[0], rtol=1e-6)
    assert found == number


def test_parts_of_a_family() -> None:
    def parts(x: jax.Array) -> Any:
        some = lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2))
        return some, lax.squeeze(lax.slice(x, (1, 0, 0), (2, 3, 4)), (0,))

    cut, one, squeezed = jax.make_jaxpr(parts)(X).jaxpr.eqns
    first = part_of(cut, taken_apart(X, 1, 3))
    assert len(first.members) == 2
    np.testing.assert_array_equal(whole(first), X[:, 1:3, ::2])
    alone = part_of(one, taken_apart(X, 0, 2))
    np.testing.assert_array_equal(part_of(squeezed, alone), X[1])
    assert part_of(squeezed, taken_apart(X, 1, 3)) is None
