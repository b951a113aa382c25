"""Contrasts, teachers, graphs, tables of many rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental import sparse

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, integers, trained, weight

WIDTH, HIDDEN, CLASSES = 8, 16, 8
LABELLED = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": integers(seed, CLASSES, ROWS)})


def contrast_of_images_and_texts() -> Problem:
    """CLIP: both softmaxes over all pairs of the batch, a learned temperature"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        image = jnp.tanh(batch["image"] @ p["image"]) @ p["project"]
        text = jnp.tanh(p["embedding"][batch["text"]].mean(1) @ p["text"]) @ p["project"]
        image, text = (z / jnp.linalg.norm(z, axis=-1, keepdims=True) for z in (image, text))
        logits = jnp.exp(p["temperature"]) * image @ text.T
        labels = jnp.arange(logits.shape[0])
        sides = (logits, logits.T)
        return (
            sum(optax.softmax_cross_entropy_with_integer_labels(s, labels).mean() for s in sides)
            / 2
        )

    params = {
        "image": weight(0, WIDTH, HIDDEN),
        "embedding": weight(1, 32, HIDDEN),
        "text": weight(2, HIDDEN, HIDDEN),
        "project": weight(3, HIDDEN, HIDDEN),
        "temperature": jnp.float32(1.0),
    }
    batches = calls(
        lambda seed: {"image": floats(seed, ROWS, WIDTH), "text": integers(seed, 32, ROWS, 6)}
    )
    return trained(loss_fn, params, batches)


def student_of_a_teacher() -> Problem:
    """Distillation: soft labels of a frozen teacher beside the true ones"""

    def logits(p: Any, x: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ p["first"]) @ p["second"]

    def step(state: Any, batch: Any) -> Any:
        soft = jax.nn.softmax(logits(state["teacher"], batch["x"]) / 2)

        def loss_fn(p: Any) -> jax.Array:
            out = logits(p, batch["x"])
            hard = optax.softmax_cross_entropy_with_integer_labels(out, batch["y"])
            return jnp.mean(hard + 4 * optax.softmax_cross_entropy(out / 2, soft))

        loss, grads = mw.value_and_grad(loss_fn)(state["student"])
        updates, opt = ADAM.update(grads, state["opt"])
        student = optax.apply_updates(state["student"], updates)
        return {"student": student, "teacher": state["teacher"], "opt": opt}, loss

    student = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, CLASSES)}
    teacher = {"first": weight(2, WIDTH, 4 * HIDDEN), "second": weight(3, 4 * HIDDEN, CLASSES)}
    state = {"student": student, "teacher": teacher, "opt": ADAM.init(student)}
    return Problem(step=step, state=state, calls=LABELLED)


def messages_along_edges() -> Problem:
    """Graph network (GNN): messages gathered and summed by `segment_sum`"""
    nodes, edges = 32, 64

    def loss_fn(p: Any, graph: Any) -> jax.Array:
        x = graph["nodes"] @ p["into"]
        for layer in p["layers"]:
            ends = jnp.concatenate([x[graph["from"]], x[graph["to"]]], -1)
            messages = jax.nn.relu(ends @ layer["message"])
            total = jax.ops.segment_sum(messages, graph["to"], nodes)
            count = jax.ops.segment_sum(jnp.ones(edges), graph["to"], nodes)
            x = x + total / jnp.maximum(count, 1)[:, None] @ layer["update"]
        return jnp.mean((x @ p["head"] - graph["target"]) ** 2)

    def layer(seed: int) -> dict[str, jax.Array]:
        return {"message": weight(seed, 2 * WIDTH, HIDDEN), "update": weight(seed, HIDDEN, WIDTH)}

    params = {
        "into": weight(0, WIDTH, WIDTH),
        "layers": [layer(1), layer(2)],
        "head": weight(3, WIDTH, 2),
    }
    graphs = calls(
        lambda seed: {
            "nodes": floats(seed, nodes, WIDTH),
            "target": floats(seed, nodes, 2),
            "from": integers(seed, nodes, edges),
            "to": integers(seed + 1, nodes, edges),
        }
    )
    return trained(loss_fn, params, graphs)


def convolution_by_a_sparse_matrix() -> Problem:
    """Sparse arrays (BCOO): the adjacency of a graph times features"""
    nodes, edges = 32, 64

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        matrix = sparse.BCOO((batch["weights"], batch["places"]), shape=(nodes, nodes))
        x = jax.nn.relu(matrix @ (batch["x"] @ p["first"]))
        return jnp.mean((matrix @ (x @ p["second"]) - batch["y"]) ** 2)

    params = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, 4)}
    batches = calls(
        lambda seed: {
            "weights": floats(seed, edges),
            "places": integers(seed, nodes, edges, 2),
            "x": floats(seed, nodes, WIDTH),
            "y": floats(seed, nodes, 4),
        }
    )
    return trained(loss_fn, params, batches)


def recommender_with_tables() -> Problem:
    """Recommender: embedding tables, a factorisation of users and items, crossed features"""
    users, items = 64, 32

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        user, item = p["users"][batch["user"]], p["items"][batch["item"]]
        pairs = jnp.stack([user, item, batch["x"] @ p["dense"]], 1)
        crossed = jnp.einsum("bik,bjk->bij", pairs, pairs)[:, *jnp.triu_indices(3, 1)]
        score = jnp.concatenate([crossed, user * item], -1) @ p["head"]
        return optax.sigmoid_binary_cross_entropy(score[:, 0], batch["clicked"]).mean()

    params = {
        "users": weight(0, users, WIDTH),
        "items": weight(1, items, WIDTH),
        "dense": weight(2, WIDTH, WIDTH),
        "head": weight(3, 3 + WIDTH, 1),
    }
    batches = calls(
        lambda seed: {
            "user": integers(seed, users, ROWS),
            "item": integers(seed, items, ROWS),
            "x": floats(seed, ROWS, WIDTH),
            "clicked": integers(seed, 2, ROWS).astype("float32"),
        }
    )
    return trained(loss_fn, params, batches, optax.adagrad(0.1))


def transport_between_batches() -> Problem:
    """Optimal transport: Sinkhorn's iterations in a `fori_loop` inside the loss"""

    def loss_fn(p: Any, batch: Any) -> jax.Array:
        x, y = batch["x"] @ p["map"], batch["other"]
        cost = jnp.sum((x[:, None] - y[None]) ** 2, -1)
        kernel = -cost / 0.5

        def balance(_: Any, duals: Any) -> Any:
            _, g = duals
            f = -jax.nn.logsumexp(kernel + g[None], 1)
            return f, -jax.nn.logsumexp(kernel + f[:, None], 0)

        zeros = jnp.zeros(x.shape[0])
        f, g = jax.lax.fori_loop(0, 5, balance, (zeros, zeros))
        return jnp.sum(jnp.exp(kernel + f[:, None] + g[None]) * cost) / x.shape[0]

    batches = calls(lambda seed: {"x": floats(seed, ROWS, 4), "other": floats(seed + 1, ROWS, 4)})
    return trained(loss_fn, {"map": weight(0, 4, 4)}, batches)
