"""Constants of a step made twice are the same step; other constants are another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwise as mw
from meshwise.api.step_tree import StepTree, does_the_same
from meshwise.cluster.cpu import cpu_cluster


def shifted(shift: Any) -> Callable[[Any], Any]:
    return lambda x: x + shift


def counted() -> Callable[[int], int]:
    def count(n: int) -> int:
        return count(n - 1) if n else 0

    return count


def defaulted(value: int) -> Callable[..., int]:
    def found(*, n: int = value) -> int:
        return n

    return found


@dataclass(frozen=True)
class Held:
    fun: Any

    def call(self, x: Any) -> Any:
        return self.fun(x)


@dataclass(eq=False)
class Apart:
    fun: Any


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    value: Any


MAKERS: list[Callable[[int], Any]] = [
    lambda n: optax.adam(10.0**-n),
    lambda n: optax.chain(optax.clip_by_global_norm(float(n)), optax.sgd(0.1, momentum=0.9)),
    lambda n: optax.adam(optax.cosine_decay_schedule(0.1, n)),
    shifted,
    defaulted,
    lambda n: partial(shifted(n), n),
    lambda n: Held({"of": [shifted(n)]}),
    lambda n: Held(shifted(n)).call,
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_made_alike_does_the_same(make: Callable[[int], Any]) -> None:
    assert does_the_same(make(2), make(2))
    assert not does_the_same(make(2), make(3))


def test_a_function_may_refer_to_itself() -> None:
    assert does_the_same(counted(), counted())


def test_keys_have_no_order() -> None:
    one = {"fun": shifted(1), "size": 2}
    assert does_the_same(one, {"size": 2, "fun": shifted(1)})
    assert not does_the_same(one, {"size": 2, "fun": shifted(2)})
    assert not does_the_same(one, {"size": 2})


def test_what_cannot_be_told_is_not_the_same() -> None:
    assert not does_the_same(shifted(np.ones(2)), shifted(np.ones(2)))
    assert not does_the_same(shifted(object()), shifted(object()))
    assert not does_the_same(Apart(1), Apart(1))
    assert not does_the_same(shifted(1), shifted(1.0))
    assert not does_the_same(shifted(1), defaulted(1))


def test_trees_are_compared_with_what_is_static_in_them() -> None:
    def tree(number: int, leaves: Any) -> StepTree:
        return StepTree(jax.tree.structure((Static(shifted(number)), leaves)))

    assert tree(1, [0, 0]) == tree(1, [0, 0])
    assert hash(tree(1, [0, 0])) == hash(tree(1, [0, 0]))
    assert tree(1, [0, 0]) != tree(2, [0, 0])
    assert tree(1, [0, 0]) != tree(1, (0, 0))
    assert tree(1, [0, 0]) != tree(1, [0])


def test_a_state_with_an_optimizer_made_anew_has_one_plan() -> None:
    def create(key: Any, rate: float = 0.1) -> Any:
        tx = optax.adam(rate)
        w = jax.random.normal(key, (8, 8))
        return w, tx.init(w), Static(tx)

    def step(state: Any, batch: Any) -> Any:
        w, opt, tx = state
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(w)
        updates, opt = tx.value.update(grad, opt, w)
        return (w + updates, opt, tx), loss

    parallel = mw.parallelize(step, cluster=cpu_cluster(2), method=mw.DataParallel())
    key, batch = jax.random.key(0), jnp.ones((4, 8))
    parallel.plan(jax.eval_shape(create, key), batch)
    state = parallel.init(create, key, batch)
    parallel(state, batch)
    assert len(parallel.plans) == 1
    parallel.plan(jax.eval_shape(partial(create, rate=0.2), key), batch)
    assert len(parallel.plans) == 2
