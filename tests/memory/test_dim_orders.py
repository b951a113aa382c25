"""Values that XLA copies into another order of dims, and zeros beside a pooled value."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from meshwise.graph.graph import Graph
from meshwise.memory.dim_orders import copied_into_other_orders
from meshwise.memory.local_program import InstructionKind, LocalProgram, LocalValue
from meshwise.memory.pooling import pooled_comparisons, zeros_beside
from meshwise.trace.flatten import flatten
from meshwise.trace.to_graph import to_graph


def graph_of(step: Callable[..., jax.Array], *shapes: tuple[int, ...]) -> Graph:
    """The graph of a function of arrays in bfloat16."""
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    return to_graph(flatten(jax.make_jaxpr(step)(*args)))


def copied(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    """What makes each copied tensor, and its shape."""
    found = copied_into_other_orders(graph)
    makers = {op.outputs[0]: op.kind for op in graph.operators if op.outputs}
    return [(makers[t], graph.tensors[t].shape) for t in sorted(found)]


def test_the_later_of_two_products_is_copied_after_its_conversion() -> None:
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        first, second = x @ y, y @ x
        wide = second.astype(jnp.float32)
        return first.T * wide + wide

    assert copied(graph_of(step, (4, 4), (4, 4))) == [("convert_element_type", (4, 4))]


def test_the_result_of_a_product_is_copied_itself_where_it_is_not_converted() -> None:
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.exp((x @ y).T) * (y @ x)

    assert copied(graph_of(step, (4, 4), (4, 4))) == [("dot_general", (4, 4))]


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_equal_orders_need_no_copy(turns: int) -> None:
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        first, second = x @ y, y @ x
        for _ in range(turns):
            first, second = jnp.tanh(first.T), second.T
        return first * second

    assert not copied(graph_of(step, (4, 4), (4, 4)))


def test_a_transpose_back_into_the_first_order_needs_no_copy() -> None:
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh((x @ y).T).T * (y @ x)

    assert not copied(graph_of(step, (4, 4), (4, 4)))


def test_arguments_have_no_order_of_their_own() -> None:
    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        return (x @ y).T * x

    assert not copied(graph_of(step, (4, 4), (4, 4)))


def test_grouped_queries_turn_the_cotangent_of_their_weights() -> None:
    def loss(query: jax.Array, key: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqghd,bkgd->bghqk", query, key).astype(jnp.float32)
        weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
        return jnp.einsum("bghqk,bkgd->bqghd", weights, key).sum().astype(jnp.float32)

    def step(query: jax.Array, key: jax.Array) -> jax.Array:
        return jax.grad(loss)(query, key)

    graph = graph_of(step, (2, 8, 2, 4, 16), (2, 8, 2, 16))
    assert copied(graph) == [("convert_element_type", (2, 2, 4, 8, 8))]


def pooled(relu: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def loss(image: jax.Array) -> jax.Array:
        windows = (1, 2, 2, 1)
        zero = -jnp.inf
        return jax.lax.reduce_window(
            relu(image), zero, jax.lax.max, windows, windows, "VALID"
        ).sum()

    return jax.grad(loss)


def test_zeros_stand_beside_a_pooled_comparison_only() -> None:
    shape = (2, 4, 4, 3)
    graph = graph_of(pooled(lambda x: jnp.maximum(x, 0)), shape)
    (found,) = pooled_comparisons(graph)
    (maker,) = (op for op in graph.operators if found in op.outputs)
    assert maker.kind == "max"
    assert not pooled_comparisons(graph_of(pooled(jnp.tanh), shape))


def test_zeros_are_made_from_what_the_comparison_reads_and_copied() -> None:
    out = LocalProgram()
    image = out.add(LocalValue(InstructionKind.INPUT, (), 64, 0, -1))
    value = out.add(LocalValue(InstructionKind.FUSIBLE, (image,), 64, 1, 0))
    copy, zeros = zeros_beside(out, value)
    assert out.values[zeros].inputs == (image,)
    assert out.values[copy].inputs == (zeros,)
    assert out.values[copy].num_bytes == out.values[zeros].num_bytes == 64
