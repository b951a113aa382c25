"""What shows on XLA:CPU that a loop is over, for the collectives after it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import Array
from jax.extend.core import Var

from meshwise.spmd.order import Order


def read(*loop: Array) -> list[bool]:
    """Return which results of a loop a collective after it reads."""

    def program(loop: tuple[Array, ...], value: Array) -> Array:
        order = Order(is_kept=True)
        order.after_loop(loop)
        return order.communicate(jnp.negative, value)

    jaxpr = jax.make_jaxpr(program)(loop, jnp.zeros(4)).jaxpr
    used = {x for equation in jaxpr.eqns for x in equation.invars if isinstance(x, Var)}
    return [x in used for x in jaxpr.invars[: len(loop)]]


@pytest.mark.parametrize(
    ("sizes", "want"),
    [
        # What is stacked over all trips would stay in memory until the collective.
        (((1000, 8), (8,), (1000, 8)), [False, True, False]),
        (((1000, 8), (8,), (16,)), [False, True, True]),
        # XLA may know a number without the loop.
        (((1000, 8), (), ()), [True, True, True]),
        (((), (1000, 8), (8,)), [True, False, True]),
        (((), ()), [True, True]),
    ],
    ids=str,
)
def test_small_results_show_that_a_loop_is_over(
    sizes: tuple[tuple[int, ...], ...], want: list[bool]
) -> None:
    assert read(*(jnp.zeros(size) for size in sizes)) == want


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float32", "int8", "uint32", "bool"]
)
def test_values_of_every_type_show_that_it_is_over_and_are_not_changed(dtype: str) -> None:
    loop, value = jnp.zeros(8, dtype), jnp.arange(4).astype(dtype)
    assert read(loop) == [True]

    def program(loop: Array, value: Array) -> Array:
        order = Order(is_kept=True)
        order.after_loop([loop])
        return order.communicate(lambda x: x, value)

    got = jax.jit(program)(loop, value)
    assert got.dtype == value.dtype
    assert (got.astype(jnp.float32) == value.astype(jnp.float32)).all()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
def test_values_of_64_bits_do_so_too(dtype: str) -> None:
    assert read(jnp.zeros(8, dtype)) == [True]
