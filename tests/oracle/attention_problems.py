"""Steps with attention, written as users write it, and decisions in which its keys go round."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw
from doubles.random_decision import random_decision
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.graph.sends import ring_axes
from meshwise.plan.counts.walk import visits
from meshwise.plan.decision import GraphDecision
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.step import StepSignature, TracedStep, open_step, trace_step
from oracle.problem import Problem

HEADS, GROUPS, FEATURES = 4, 2, 4
WIDTH = HEADS * FEATURES


def by_jax(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Grouped heads, causal, with sequences of different lengths."""
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, query_seq_lengths=lengths, key_value_seq_lengths=lengths
    )


def causal(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Grouped heads under a causal mask and no other."""
    del lengths
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def by_hand(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    """Causal, with a bias that grows with distance and a mask of what is not a token."""
    k, v = (jnp.repeat(x, HEADS // GROUPS, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(FEATURES)
    place = jnp.arange(scores.shape[-1])
    scores = scores - 0.1 * (place[:, None] - place[None, :])
    is_seen = (place[:, None] >= place[None, :]) & (place < lengths[:, None])[:, None, None, :]
    scores = jnp.where(is_seen, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def layers(attention: Any, *, rows: int, length: int, dtype: Any = None, scan: bool = False) -> Any:
    """Two layers of attention over a stream, trained by gradient descent."""

    def layer(stream: Any, weights: Any, lengths: Any) -> Any:
        def part(name: str, heads: int) -> Any:
            made = stream @ weights[name].astype(stream.dtype)
            return made.reshape(*stream.shape[:2], heads, FEATURES)

        mixed = attention(part("q", HEADS), part("k", GROUPS), part("v", GROUPS), lengths)
        return stream + mixed.reshape(stream.shape).astype(stream.dtype) @ weights["o"].astype(
            stream.dtype
        )

    def loss(weights: Any, batch: Any) -> Any:
        stream = batch["x"] if dtype is None else batch["x"].astype(dtype)
        if scan:
            stream, _ = jax.lax.scan(
                lambda x, w: (layer(x, w, batch["lengths"]), None), stream, weights
            )
        else:
            for n in range(2):
                own = jax.tree.map(lambda w, n=n: w[n], weights)
                stream = layer(stream, own, batch["lengths"])
        return jnp.mean((stream.astype(batch["x"].dtype) - batch["y"]) ** 2)

    def step(weights: Any, batch: Any) -> Any:
        value, gradient = mw.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradient), value

    rng = np.random.default_rng(0)
    sizes = {"q": WIDTH, "k": GROUPS * FEATURES, "v": GROUPS * FEATURES, "o": WIDTH}
    state = {n: jnp.asarray(rng.normal(size=(2, WIDTH, size)) * 0.25) for n, size in sizes.items()}
    batches = [
        {
            "x": jnp.asarray(rng.normal(size=(rows, length, WIDTH))),
            "y": jnp.asarray(rng.normal(size=(rows, length, WIDTH))),
            "lengths": jnp.asarray(rng.integers(2, length + 1, rows), jnp.int32),
        }
        for _ in range(3)
    ]
    return Problem(step=step, state=state, calls=tuple((batch,) for batch in batches))


def joined(problem: Problem, num_microbatches: int = 1) -> TracedStep:
    """The step with each attention as one operator, as traced for 8 devices."""
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    found = with_attention(
        open_step(problem.step, (problem.state, *problem.calls[0]), {}, signature)
    )
    assert found is not None
    return trace_step(found, num_microbatches=num_microbatches, num_devices=8)


def ring_decision(graph: Graph, mesh: LogicalMesh, goes_round: Any = ring_axes) -> GraphDecision:
    """The first random decision in which the keys of forward and backward passes go round."""
    for seed in range(1000):
        decision = random_decision(graph, mesh, random.Random(seed))
        kinds = {
            visit.operator.kind
            for visit in visits(graph, decision)
            if goes_round(visit.operator.rule, visit.decision.strategy, mesh.sizes)
        }
        if kinds == {"attention", "attention_gradient"}:
            return decision
    raise AssertionError("no ring was drawn")
