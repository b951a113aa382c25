"""Which `while` loops have a known number of trips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from meshwise.trace.flatten import flatten

X = jnp.ones(3)


def structure_of(fun: Callable[..., Any], *args: Any) -> Any:
    (node,) = [n for n in flatten(jax.make_jaxpr(fun)(*args)).nodes if n.name == "while"]
    return node.structure


def counted(start: Any, goes_on: Callable[[Any], Any], step: Callable[[Any], Any]) -> Any:
    return structure_of(
        lambda x: lax.while_loop(
            lambda c: goes_on(c[0]), lambda c: (step(c[0]), c[1] * 2), (start, x)
        ),
        X,
    )


@pytest.mark.parametrize(
    ("start", "goes_on", "step"),
    [
        (0, lambda i: i < 7, lambda i: i + 1),
        (1, lambda i: i < 7, lambda i: i + 2),
        (0, lambda i: i <= 7, lambda i: 3 + i),
        (9, lambda i: i > 2, lambda i: i - 2),
        (9, lambda i: i >= 1, lambda i: i - 2),
        (0, lambda i: lax.gt(6, i), lambda i: i + 1),
        (0, lambda i: i != 6, lambda i: i + 3),
        (5, lambda i: i < 5, lambda i: i + 1),
        (5, lambda i: i < 3, lambda i: i + 1),
    ],
)
def test_counters_from_a_constant_to_a_constant(start: int, goes_on: Any, step: Any) -> None:
    trips, i = 0, start
    while goes_on(i):
        trips, i = trips + 1, step(i)
    found = counted(jnp.int32(start), goes_on, step)
    assert found.is_counted
    assert [part.trips for part in found.parts] == [trips + 1, trips]


@pytest.mark.parametrize(
    ("start", "goes_on", "step"),
    [
        (0, lambda i: i < 7, lambda i: i * 2 + 1),
        (0, lambda i: (i < 7) & (i > -1), lambda i: i + 1),
        (0, lambda i: i >= 0, lambda i: i + 1),
        (0, lambda i: i != 7, lambda i: i + 2),
        (0.0, lambda i: i < 7.0, lambda i: i + 1.0),
        (0, lambda i: i < 2**31 - 2, lambda i: i + 2**30),
    ],
    ids=["not a sum", "two tests", "never ends", "steps over", "float", "overflows"],
)
def test_other_counters_are_not_trusted(start: Any, goes_on: Any, step: Any) -> None:
    found = counted(jnp.asarray(start), goes_on, step)
    assert not found.is_counted
    assert [part.trips for part in found.parts] == [2, 1]


def test_a_start_or_a_limit_that_is_an_argument_is_unknown() -> None:
    def to(limit: Any) -> Any:
        return lax.while_loop(lambda i: i < limit, lambda i: i + 1, jnp.int32(0))

    def begin(start: Any) -> Any:
        return lax.while_loop(lambda i: i < 7, lambda i: i + 1, start)

    assert not structure_of(to, jnp.int32(5)).is_counted
    assert not structure_of(begin, jnp.int32(5)).is_counted


def test_a_start_that_follows_from_constants_is_known() -> None:
    def fun(x: Any) -> Any:
        start = jnp.zeros((), jnp.int32) + jnp.int32(2)
        return lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, c[1] * 2), (start, x))

    assert structure_of(jax.jit(fun), X).length == 5


def test_a_branch_that_is_known_is_inlined() -> None:
    def fun(x: Any) -> Any:
        return lax.switch(jnp.int32(1), (jnp.sin, jnp.cos), x)

    # Outside of a trace JAX would choose the branch itself.
    closed = jax.make_jaxpr(lambda x: jax.jit(fun)(x))(X)
    names = [node.name for node in flatten(closed).nodes]
    assert "cos" in names
    assert not {"sin", "cond"} & set(names)
