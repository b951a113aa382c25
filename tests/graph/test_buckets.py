"""Gradients and parameters are sent in buckets; what dense operators wait for is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.graph.buckets import with_buckets
from meshwise.graph.graph import Graph
from oracle.one_device import traced

WIDTH, ROWS, LAYERS = 8, 4, 3
# Two gradients a layer, and the squares whose mean is the loss.
SHARERS = 2 * LAYERS + 1


def layer(x, leaves):
    return jnp.tanh(x @ leaves["w"] + leaves["b"])


def layered(params, x):
    for leaves in params:
        x = layer(x, leaves)
    return x


def scanned(params, x):
    return jax.lax.scan(lambda x, leaves: (layer(x, leaves), None), x, params)[0]


def sgd_graph(model, params) -> Graph:
    def step(params, batch):
        loss, grads = mw.value_and_grad(lambda p: jnp.mean(model(p, batch) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    return traced(step, params, jax.ShapeDtypeStruct((ROWS, WIDTH), "float32"), b=1).graph


def leaves(*stack: int):
    return {
        "w": jax.ShapeDtypeStruct((*stack, WIDTH, WIDTH), "float32"),
        "b": jax.ShapeDtypeStruct((*stack, WIDTH), "float32"),
    }


def graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for op in graph.operators:
        for body in op.bodies:
            yield from graphs(body)


def test_parameters_and_gradients_share_buckets_and_activations_do_not() -> None:
    graph = sgd_graph(layered, [leaves() for _ in range(LAYERS)])
    shared = {t for t, tensor in enumerate(graph.tensors) if tensor.sharers}
    assert {graph.tensors[t].sharers for t in shared} == {SHARERS}
    assert {*graph.inputs[:-1], *(t for t in graph.outputs if graph.tensors[t].shape)} <= shared
    made = [t for op in graph.operators for t in op.outputs]
    rows = [t for t in made if graph.tensors[t].shape[:1] == (ROWS,)]
    # All but the squares lead to the backward pass, or come from it.
    (squares,) = shared.intersection(rows)
    assert [op.kind for op in graph.operators if squares in op.outputs] == ["integer_pow"]


def test_scalars_run_alone() -> None:
    graph = sgd_graph(layered, [leaves()])
    assert all(tensor.shape for tensor in graph.tensors if tensor.sharers)


def test_slices_of_stacked_parameters_share_buckets_in_loops() -> None:
    graph = sgd_graph(scanned, leaves(LAYERS))
    bodies = [g for g in graphs(graph) if g is not graph]
    assert len(bodies) == 2
    for body in bodies:
        rows = [t for t, tensor in enumerate(body.tensors) if tensor.shape == (ROWS, WIDTH)]
        weights = [t for t in body.inputs if body.tensors[t].shape == (WIDTH, WIDTH)]
        assert rows
        assert weights
        assert not any(body.tensors[t].sharers for t in rows)
        assert all(body.tensors[t].sharers for t in weights)
    # Both products of the backward body are on the way to a result; one of them is a gradient.
    made = {t for body in bodies for op in body.operators for t in op.outputs if op.heavy
            if body.tensors[t].sharers}  # fmt: skip
    assert made


def test_a_body_counts_its_own_tensors() -> None:
    """A compiler merges nothing of two loops: each trip pays a latency for its own bucket."""

    def model(params, x):
        for stacked in params:
            x = scanned(stacked, x)
        return x

    graph = sgd_graph(model, [leaves(LAYERS)] * 3)
    bodies = [g for g in graphs(graph) if g is not graph]
    assert len(bodies) == 6
    for body in bodies:
        assert {tensor.sharers for tensor in body.tensors} == {0, 2}
    # The stacked gradients of all loops are there at the end of the step.
    assert {tensor.sharers for tensor in graph.tensors} == {0, 2 * 3 + 1}


def test_parameters_of_a_step_without_gradients_share_buckets() -> None:
    graph = traced(
        layered,
        [leaves() for _ in range(LAYERS)],
        jax.ShapeDtypeStruct((ROWS, WIDTH), "float32"),
        b=1,
    ).graph
    # The rows, and all weights and biases but the last bias, which leads to no product.
    assert {graph.tensors[t].sharers for t in graph.inputs} == {2 * LAYERS}


def test_sums_over_trips_share_buckets() -> None:
    """A gradient that a loop adds up is read by the optimizer only."""

    def step(w, rows):
        def trip(total, x):
            return total + jax.grad(lambda w: jnp.sum((x @ w) @ w))(w), None

        total, _ = jax.lax.scan(trip, jnp.zeros_like(w), rows)
        return w - total

    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    rows = jax.ShapeDtypeStruct((3, ROWS, WIDTH), "float32")
    graph = traced(step, w, rows, b=1).graph
    (loop,) = (op for op in graph.operators if op.bodies)
    (body,) = loop.bodies
    assert graph.tensors[loop.outputs[0]].sharers
    assert body.tensors[body.outputs[0]].sharers


def test_a_carry_that_a_later_trip_multiplies_runs_alone() -> None:
    def step(w, x):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), jnp.sin(x), None, length=3)[0]

    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), "float32")
    graph = traced(step, w, x, b=1).graph
    (loop,) = (op for op in graph.operators if op.bodies)
    (body,) = loop.bodies
    chain = {body.outputs[0], *(t for t in body.inputs if body.tensors[t].shape == (ROWS, WIDTH))}
    assert not any(body.tensors[t].sharers for t in chain)
    # Nothing multiplies what the last trip leaves.
    assert graph.tensors[loop.outputs[0]].sharers


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_neighbours_of_a_piece_count(where: str) -> None:
    """An activation of a piece that enters or leaves lies between its products and others."""
    graph = sgd_graph(layered, [leaves() for _ in range(LAYERS)])
    if where == "outputs":
        ident = graph.outputs[0]
        marked = with_buckets(graph, outputs=[ident])
    else:
        ident = graph.inputs[0]
        marked = with_buckets(graph, inputs=[ident])
    assert graph.tensors[ident].sharers == SHARERS
    assert not marked.tensors[ident].sharers
    assert any(tensor.sharers for tensor in marked.tensors)


def test_a_norm_by_a_product_leaves_gradients_in_buckets() -> None:
    def step(params, batch):
        loss, grads = mw.value_and_grad(lambda p: jnp.mean(layered(p, batch) ** 2))(params)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda p, g: p - 0.1 * g / norm, params, grads), loss

    params = [leaves() for _ in range(LAYERS)]
    graph = traced(step, params, jax.ShapeDtypeStruct((ROWS, WIDTH), "float32"), b=1).graph
    norms = [op for op in graph.operators if op.heavy and not graph.tensors[op.outputs[0]].shape]
    assert len(norms) == 2 * LAYERS
    read = {t for op in norms for t in op.inputs}
    assert all(graph.tensors[t].sharers >= SHARERS for t in read)


def test_what_crosses_the_cuts_of_a_piece_runs_alone() -> None:
    """Also a cotangent of which no product follows, and an activation that no product made."""

    def step(w, scale, cotangent):
        return w @ w, jnp.sin(scale), jnp.sum(cotangent, axis=0)

    square = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    graph = traced(step, square, square, square, b=1).graph
    enters, leaves = graph.inputs[2], graph.outputs[1]
    marked = with_buckets(graph, inputs=[enters], outputs=[leaves])
    assert not marked.tensors[enters].sharers
    assert not marked.tensors[leaves].sharers
    for near in (graph.inputs[1], graph.outputs[2]):
        assert marked.tensors[near].sharers == 2


def test_marks_do_not_change_what_is_planned_beside_them() -> None:
    graph = sgd_graph(layered, [leaves()])
    without = [dataclasses.replace(t, sharers=0) for t in graph.tensors]
    assert [dataclasses.replace(t, sharers=0) for t in with_buckets(graph).tensors] == without
