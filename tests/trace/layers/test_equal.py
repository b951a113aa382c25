"""Layers that draw other random numbers are equal; layers with other constants are not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.graph.graph import Graph
from meshwise.trace.layers.chain import chain_of
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.split import split_step
from meshwise.trace.step import StepSignature, open_step

Block = Callable[[Any, Any, Any, int], Any]
SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
BLOCKS = 4


def layering(block: Block, returned: Sequence[int] = ()) -> Layering:
    """A step whose layers are blocks, each with its product, its key and its number.

    The loss returns what some of them make.
    """

    def loss_fn(weights: Any, x: Any, key: Any) -> Any:
        made: list[Any] = []
        for i, w in enumerate(weights):
            x = jnp.sin(block(jnp.tanh(x @ w), x, key, i))
            made.append(x)
        return jnp.mean(x), [made[i] for i in returned]

    def step(state: Any, batch: Any) -> Any:
        weights, key = state
        loss, grads = mw.value_and_grad(loss_fn, has_aux=True)(weights, batch, key)
        new = [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]
        return (new, jax.random.fold_in(key, 1)), loss

    args = ([jnp.ones((8, 8))] * BLOCKS, jax.random.key(0)), jnp.ones((4, 8))
    opened = open_step(step, args, {}, SIGNATURE)
    split = split_step(opened.closed, opened.batch_dims, opened.aliases, opened.names)
    chain = chain_of(split)
    ends = [k for k, e in enumerate(chain.links) if e.primitive.name == "sin"]
    bounds = [0, *(k + 1 for k in ends[:-1]), len(chain.links)]
    return Layering(split, chain, [(a, b - 1) for a, b in itertools.pairwise(bounds)], 4)


def dropped(key: Any, y: Any, rate: float = 0.5) -> Any:
    return jnp.where(jax.random.bernoulli(key, rate, y.shape), y, 0.0)


def folded(y: Any, _: Any, key: Any, i: int) -> Any:
    return dropped(jax.random.fold_in(key, 20 + i), y)


def folded_raw(y: Any, _: Any, key: Any, i: int) -> Any:
    raw = jax.random.key_data(key)
    return dropped(jax.random.fold_in(jax.random.fold_in(raw, 20 + i), 50 - i), y)


def folded_array(y: Any, _: Any, key: Any, i: int) -> Any:
    return dropped(jax.random.fold_in(key, jnp.int32(20 + i)), y)


def own_key(y: Any, _: Any, key: Any, i: int) -> Any:
    return dropped(jax.random.split(key, BLOCKS)[i], y)


def own_raw_key(y: Any, _: Any, key: Any, i: int) -> Any:
    return dropped(jax.random.split(jax.random.key_data(key), BLOCKS)[i], y)


def rematerialised(y: Any, x: Any, key: Any, i: int) -> Any:
    return jax.checkpoint(lambda y, key: folded(y, x, key, i))(y, key)


def other_rates(y: Any, _: Any, key: Any, i: int) -> Any:
    return dropped(key, y, 0.5 + 0.1 * i)


def other_slices(y: Any, x: Any, key: Any, i: int) -> Any:
    return folded(y, x, key, i).at[:, :4].add(x[:, i : i + 4])


def folded_twice_alike(y: Any, x: Any, key: Any, i: int) -> Any:
    """Two draws; in the last blocks they are the same one."""
    second = dropped(jax.random.fold_in(key, 30 + i if i < 2 else 20 + i), x)
    return folded(y, x, key, i) + second


def also_a_factor(y: Any, _: Any, key: Any, i: int) -> Any:
    number = jnp.int32(20 + i).astype(jnp.uint32)
    return dropped(jax.random.fold_in(key, number), y) * number.astype(y.dtype)


def known_keys(y: Any, _: Any, key: Any, i: int) -> Any:
    """Keys that follow from no argument."""
    return dropped(jax.random.fold_in(jax.random.key(0), 20 + i), y)


@pytest.mark.parametrize(
    "block", [folded, folded_raw, folded_array, own_key, own_raw_key, rematerialised]
)
def test_layers_with_other_random_numbers_are_equal(block: Block) -> None:
    layers = layering(block)
    assert layers.classes == (0, 1, 1, 3)
    # What is planned does not tell them apart either.
    assert said(layers.graph(1, 1, 2).graph) == said(layers.graph(2, 2, 2).graph)


@pytest.mark.parametrize(
    "block", [other_rates, other_slices, folded_twice_alike, also_a_factor, known_keys]
)
def test_layers_with_other_constants_are_not(block: Block) -> None:
    assert layering(block).classes == (0, 1, 2, 3)


def test_a_layer_of_which_the_step_returns_the_rows_is_not() -> None:
    assert layering(folded, returned=[2]).classes == (0, 1, 2, 3)


def said(graph: Graph) -> Any:
    """A graph without names, lines of source, and the text of its parameters."""
    return replace(
        graph,
        tensors=tuple(replace(t, name="") for t in graph.tensors),
        operators=tuple(
            replace(op, where="", detail="", bodies=tuple(map(said, op.bodies)))
            for op in graph.operators
        ),
    )


def test_rows_of_equal_layers_are_those_of_the_first() -> None:
    layers, apart = layering(folded), layering(folded)
    apart.classes = tuple(range(BLOCKS))
    assert len(set(layers.classes)) < BLOCKS
    for k in range(BLOCKS):
        assert layers.joint(k, k).batch_dims == apart.joint(k, k).batch_dims


def test_what_enters_a_layer_stands_in_the_order_it_is_made() -> None:
    """In no order of addresses, which differ whenever the step is traced."""

    def loss_fn(w: Any, x: Any) -> Any:
        return sum(jnp.mean(jnp.tanh(part)) for part in jnp.split(x @ w, 64, axis=1))

    def step(w: Any, x: Any) -> Any:
        loss, grad = mw.value_and_grad(loss_fn)(w, x)
        return w - grad, loss

    opened = open_step(step, (jnp.ones((8, 64)), jnp.ones((4, 8))), {}, SIGNATURE)
    split = split_step(opened.closed, opened.batch_dims, opened.aliases, opened.names)
    chain = chain_of(split)
    cut = 1 + next(k for k, e in enumerate(chain.links) if len(e.outvars) == 64)
    layers = Layering(split, chain, [(0, cut - 1), (cut, len(chain.links) - 1)], 4)
    assert layers.piece(1, 1).entering == tuple(chain.links[cut - 1].outvars)
