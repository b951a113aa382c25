"""`parallelize` on the methods of a class."""

from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import TraceError

CLUSTER = cpu_cluster(2)
X = jnp.arange(8.0).reshape(4, 2)
STATE = {"w": jnp.ones((2, 2))}
parallelize = partial(mw.parallelize, method=mw.DataParallel(), cluster=CLUSTER)


def step(state: Any, batch: Any) -> Any:
    return {"w": state["w"] + (batch.T @ batch)}, jnp.mean(batch @ state["w"])


def fresh() -> Any:
    return jax.tree.map(jnp.copy, STATE)


def message(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value)


class Trainer:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    @mw.parallelize(method=mw.DataParallel(), cluster=CLUSTER, donate_argnums=())
    def step(self, state: Any, batch: Any) -> Any:
        return step(state, self.rate * batch)

    @classmethod
    @mw.parallelize(method=mw.DataParallel(), cluster=CLUSTER, donate_argnums=())
    def of_class(cls, state: Any, batch: Any) -> Any:
        assert cls is Trainer
        return step(state, batch)

    @staticmethod
    @mw.parallelize(method=mw.DataParallel(), cluster=CLUSTER, donate_argnums=())
    def of_no_one(state: Any, batch: Any) -> Any:
        return step(state, batch)


def test_a_method_is_a_step_of_its_object() -> None:
    one, two = Trainer(1.0), Trainer(2.0)
    assert isinstance(Trainer.step, mw.ParallelStep)
    assert one.step is one.step
    for _ in range(2):
        for trainer in (one, two):
            wanted = step(STATE, trainer.rate * X)
            jax.tree.map(np.testing.assert_allclose, trainer.step(STATE, batch=X), wanted)
    for other in (Trainer.of_no_one, two.of_no_one):
        jax.tree.map(np.testing.assert_allclose, other(STATE, X), step(STATE, X))


def test_a_method_of_a_class_is_a_step_of_that_class() -> None:
    if sys.version_info >= (3, 13):
        # A classmethod no longer asks what it wraps for what belongs to a class.
        with pytest.raises(TraceError, match="argument 0 \\(cls\\).*static_argnums"):
            Trainer.of_class(STATE, X)
        return
    for other in (Trainer.of_class, Trainer(1.0).of_class):
        jax.tree.map(np.testing.assert_allclose, other(STATE, X), step(STATE, X))
    assert Trainer.of_class is Trainer(1.0).of_class


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the class is no argument")
def test_a_method_of_a_class_may_take_it_as_a_constant() -> None:
    class Other:
        @classmethod
        @mw.parallelize(method=mw.DataParallel(), cluster=CLUSTER, static_argnums=0)
        def step(cls, state: Any, batch: Any) -> Any:
            assert cls is Other
            return step(state, batch)

    jax.tree.map(np.testing.assert_allclose, Other.step(fresh(), X), step(STATE, X))


COPIES = pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)


@COPIES
@pytest.mark.parametrize("made", [lambda: parallelize(step), lambda: Trainer(2.0).step])
def test_a_copy_of_a_step_that_ran_is_one_of_the_same_function(copied: Any, made: Any) -> None:
    one = made()
    want = one(fresh(), X)
    two = copied(one)
    assert isinstance(two, mw.ParallelStep)
    assert two.__name__ == one.__name__ == "step"
    jax.tree.map(np.testing.assert_allclose, two(fresh(), X), want)


def test_a_function_under_its_decorator_is_not_pickled_as_of_jit() -> None:
    for decorated in (parallelize(lambda state, batch: state), jax.jit(lambda state: state)):
        copy.deepcopy(decorated)
        with pytest.raises(
            (pickle.PicklingError, AttributeError), match="(?i)can't (pickle|get local object)"
        ):
            pickle.dumps(decorated)


@COPIES
def test_a_copy_of_an_object_has_a_step_of_its_own(copied: Any) -> None:
    one = Trainer(1.0)
    one.step(STATE, X)
    two = copied(one)
    two.rate = 3.0
    jax.tree.map(np.testing.assert_allclose, two.step(STATE, X), step(STATE, 3.0 * X))
    jax.tree.map(np.testing.assert_allclose, one.step(STATE, X), step(STATE, X))


def test_a_method_of_a_frozen_object_and_of_one_with_slots() -> None:
    @dataclass(frozen=True)
    class Frozen:
        rate: float

        @parallelize
        def step(self, state: Any, batch: Any) -> Any:
            return step(state, self.rate * batch)

    jax.tree.map(np.testing.assert_allclose, Frozen(2.0).step(fresh(), X), step(STATE, 2 * X))

    class Slotted:
        __slots__ = ()

        @parallelize
        def step(self, state: Any, batch: Any) -> Any:
            return step(state, batch)

    with pytest.raises(TraceError) as caught:
        Slotted().step(STATE, X)
    assert message(caught) == (
        "step is a method of Slotted, whose __slots__ leave no place for the compiled step; add "
        "'__dict__' to them, or parallelize a function"
    )
