"""Functions of libraries made twice are the same step; what may have changed is another one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
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

RATE = 0.1


@jax.tree_util.register_dataclass
@dataclass
class Trained:
    weight: Any
    opt: Any
    tx: Any = field(metadata={"static": True})


@dataclass
class Config:
    rate: float


def shifted(shift: Any) -> Callable[[Any], Any]:
    return lambda x: x + shift


MAKERS: list[Callable[[int], Any]] = [
    lambda n: optax.adam(10.0**-n),
    lambda n: optax.chain(optax.clip_by_global_norm(float(n)), optax.sgd(0.1, momentum=0.9)),
    lambda n: optax.adam(optax.cosine_decay_schedule(0.1, n)),
    lambda n: partial(optax.cosine_decay_schedule(0.1, 9), n),
    lambda n: (optax.adam(0.1), n),
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_a_library_makes_alike_does_the_same(make: Callable[[int], Any]) -> None:
    assert does_the_same(make(2), make(2))
    assert not does_the_same(make(2), make(3))


@pytest.mark.parametrize(
    "make",
    [
        # What a user's function reads may have changed, though the function is the same.
        lambda: optax.adam(lambda count: RATE),
        partial(optax.adam, partial(max, Config(0.1).rate)),
        partial(optax.adam, shifted(0.1)),
        lambda: shifted(1),
        # So may what a constant holds.
        partial(optax.masked, optax.adam(0.1), {"w": True}),
        lambda: optax.scale(np.ones(2)),
        lambda: optax.scale(jnp.ones(2)),
    ],
)
def test_what_may_have_changed_is_not_known_to_be_the_same(make: Callable[[], Any]) -> None:
    assert not does_the_same(make(), make())


def test_numbers_are_compared_with_type_and_sign() -> None:
    assert not does_the_same(optax.scale(1), optax.scale(1.0))
    assert not does_the_same(optax.scale(0.0), optax.scale(-0.0))
    assert not does_the_same(optax.scale(1.0), optax.add_decayed_weights(1.0))


def test_a_users_own_comparison_that_fails_says_no() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        def __hash__(self) -> int:
            return 0

    assert not does_the_same(Odd(), Odd())


def test_trees_are_compared_with_what_is_static_in_them() -> None:
    def tree(rate: float, leaves: Any) -> StepTree:
        return StepTree(jax.tree.structure((Trained(0, 0, optax.adam(rate)), leaves)))

    assert tree(0.1, [0, 0]) == tree(0.1, [0, 0])
    assert hash(tree(0.1, [0, 0])) == hash(tree(0.1, [0, 0]))
    assert tree(0.1, [0, 0]) != tree(0.2, [0, 0])
    assert tree(0.1, [0, 0]) != tree(0.1, (0, 0))
    assert tree(0.1, [0, 0]) != tree(0.1, [0])


def test_a_global_that_a_schedule_reads_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def create() -> Any:
        tx = optax.sgd(lambda count: RATE)
        weight = jnp.ones((8, 8))
        return Trained(weight, tx.init(weight), tx)

    def step(state: Any, batch: Any) -> Any:
        grad = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(state.weight)
        updates, opt = state.tx.update(grad, state.opt)
        return Trained(state.weight + updates, opt, state.tx), jnp.sum(grad)

    parallel = mw.parallelize(step, cluster=cpu_cluster(2), method=mw.DataParallel())
    batch = jnp.ones((4, 8))
    for rate in (0.1, 10.0):
        monkeypatch.setattr(sys.modules[__name__], "RATE", rate)
        want, _ = jax.jit(step)(create(), batch)
        got, _ = parallel(create(), batch)
        np.testing.assert_allclose(got.weight, want.weight, rtol=1e-6)


def test_a_state_with_an_optimizer_made_anew_has_one_plan() -> None:
    def create(key: Any, rate: float = 0.1) -> Any:
        tx = optax.adam(rate)
        w = jax.random.normal(key, (8, 8))
        return Trained(w, tx.init(w), tx)

    def step(state: Any, batch: Any) -> Any:
        w = state.weight
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(w)
        updates, opt = state.tx.update(grad, state.opt, w)
        return Trained(w + updates, opt, state.tx), loss

    parallel = mw.parallelize(step, cluster=cpu_cluster(2), method=mw.DataParallel())
    key, batch = jax.random.key(0), jnp.ones((4, 8))
    parallel.plan(jax.eval_shape(create, key), batch)
    state = parallel.init(create, key, batch)
    parallel(state, batch)
    assert len(parallel.plans) == 1
    parallel.plan(jax.eval_shape(partial(create, rate=0.2), key), batch)
    assert len(parallel.plans) == 2
