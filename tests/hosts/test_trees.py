"""A structure has one number on both sides, and what cannot be sent stays what it was."""

from __future__ import annotations

from collections.abc import Callable

import cloudpickle
import jax
import pytest

from meshwise.hosts.ray.trees import Skeleton, Trees


def a_state(rule: Callable[[int], int]) -> dict[str, object]:
    return {"params": [1, 2], "rule": jax.tree_util.Partial(rule, 3)}


def test_a_structure_that_was_sent_comes_back_as_the_sender_made_it() -> None:
    own, other = Trees(), Trees()
    made = jax.tree.structure((a_state(lambda x: x), 7))
    number = own.learn(made)
    sent = cloudpickle.loads(cloudpickle.dumps(Skeleton.of(made))).structure
    assert sent != made  # The function is another one.
    assert other.learn(sent) == number
    state, _ = sent.children()
    found = other.number(state)
    assert found is not None
    assert own[found] == made.children()[0]


def test_what_a_call_taught_that_failed_is_forgotten() -> None:
    trees = Trees()
    first, second = (jax.tree.structure(x) for x in ({"a": 1}, {"a": 1, "b": (2, 3)}))
    trees.learn(first)
    known = len(trees)
    number = trees.learn(second)
    leaf = trees.number(jax.tree.structure(1))
    trees.forget(known)
    assert trees.number(second) is None
    assert trees.number(first) == 0
    assert trees.number(jax.tree.structure(1)) == leaf
    with pytest.raises(IndexError):
        trees[number]
    assert trees.learn(second) == number
