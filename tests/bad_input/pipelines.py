"""Steps and batches that cannot be cut into stages and micro-batches."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import grad

import meshwise as mw
from bad_input.case import Case
from meshwise.errors import TraceError

WEIGHTS = {name: np.ones((4, 4), np.float32) for name in ("first", "second")}
X = np.ones((8, 4), np.float32)
CLUSTER = mw.Cluster.virtual("2x p3.2xlarge")


def planned(fun: Any, batch: Any = X, num_microbatches: int = 2, stages: int = 2) -> Any:
    method = mw.Auto(stages=stages)
    return mw.parallelize(
        fun, method=method, cluster=CLUSTER, num_microbatches=num_microbatches
    ).plan(WEIGHTS, batch)


def taken(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        return error(weights, jnp.take(batch, jnp.argmax(batch, axis=1), axis=0))

    value, grads = mw.value_and_grad(loss)(weights)
    return descended(weights, grads), value


def error(weights: Any, batch: Any) -> Any:
    return jnp.mean((jnp.tanh(batch @ weights["first"]) @ weights["second"]) ** 2)


def descended(weights: Any, grads: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def once(weights: Any, batch: Any) -> Any:
    loss, grads = mw.value_and_grad(error)(weights, batch)
    return descended(weights, grads), loss


def twice(weights: Any, batch: Any) -> Any:
    _, grads = mw.value_and_grad(error)(weights, batch)
    weights = descended(weights, grads)
    loss, grads = mw.value_and_grad(error)(weights, batch)
    return descended(weights, grads), loss


def normalised(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        x = batch @ weights["first"]
        # A function of JAX's that is traced once for all: its equations know no line of ours.
        return jnp.mean((jnp.tanh(x / jnp.sqrt(jnp.var(x, 0) + 1)) @ weights["second"]) ** 2)

    value, grads = mw.value_and_grad(loss)(weights)
    return descended(weights, grads), value


def joined(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        mean = jnp.mean((jnp.tanh(batch @ weights["first"]) @ weights["second"]) ** 2, 0)
        return jnp.sum(weights["second"] @ (weights["first"] @ mean))

    value, grads = mw.value_and_grad(loss)(weights)
    return descended(weights, grads), value


def two_blocks(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        both = jnp.tanh(jnp.concatenate([batch, -batch]) @ weights["first"]) @ weights["second"]
        return jnp.mean(both**2), both

    (value, both), grads = mw.value_and_grad(loss, has_aux=True)(weights)
    return descended(weights, grads), (value, both)


def summed(weights: Any, batch: Any) -> Any:
    def body(sums: Any, rows: Any) -> Any:
        loss, grads = mw.value_and_grad(error)(weights, rows)
        return jax.tree.map(jnp.add, sums, (loss, grads)), None

    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights))
    (loss, grads), _ = jax.lax.scan(body, zeros, batch.reshape(4, 2, 4))
    return descended(weights, grads), loss


def chosen(weights: Any, batch: Any) -> Any:
    def once(batch: Any) -> Any:
        return mw.value_and_grad(error)(weights, batch)

    loss, grads = jax.lax.cond(batch[0, 0] > 0, once, lambda batch: once(-batch), batch)
    return descended(weights, grads), loss


error_and_grad = jax.value_and_grad(error)


def made_before(weights: Any, batch: Any) -> Any:
    loss, grads = error_and_grad(weights, batch)
    return descended(weights, grads), loss


def imported(weights: Any, batch: Any) -> Any:
    grads = grad(error)(weights, batch)
    return descended(weights, grads), error(weights, batch)


def of_equinox(weights: Any, batch: Any) -> Any:
    loss, grads = eqx.filter_value_and_grad(error)(weights, batch)
    return descended(weights, grads), loss


def of_nnx(weights: Any, batch: Any) -> Any:
    loss, grads = nnx.value_and_grad(error)(weights, batch)
    return descended(weights, grads), loss


PIPELINES = (
    Case(
        "stages of gradients that are summed in a loop",
        lambda: planned(summed),
        TraceError,
        "a step that is cut into stages differentiates its loss once, for the whole batch; this "
        "one does at pipelines.py:{line} (summed.body) inside the scan at pipelines.py:{line} "
        "(summed); to sum gradients over parts of the batch, take the loop away and say "
        "num_microbatches=4: the pipeline cuts the batch itself, or use one stage",
    ),
    Case(
        "stages of a gradient in a branch",
        lambda: planned(chosen),
        TraceError,
        "this one does at pipelines.py:{line} (chosen.once) inside the cond at "
        "pipelines.py:{line} (chosen); put the choice into the loss, or use one stage",
    ),
    Case(
        "stages of two losses",
        lambda: planned(twice),
        TraceError,
        "a step that is cut into stages has one loss, differentiated with mw.value_and_grad; this "
        "one has 2 (pipelines.py:{line} (twice); pipelines.py:{line} (twice)): make one loss of "
        "their sum, as mw.value_and_grad(lambda params: first(params) + second(params)), or, "
        "where one gradient needs the other, as in SAM, use one stage",
    ),
    Case(
        "stages with a gradient function made before",
        lambda: planned(made_before),
        TraceError,
        "a step is cut into stages at its loss, but the step differentiates with JAX's own "
        "function at pipelines.py:{line}: `error_and_grad = jax.value_and_grad(error)`; only "
        "mw.value_and_grad and mw.grad mark the loss so that it can be cut: write "
        "`error_and_grad = mw.value_and_grad(error)`, or use one stage",
    ),
    Case(
        "stages with grad from jax",
        lambda: planned(imported),
        TraceError,
        "write `grads = mw.grad(error)(weights, batch)`, or use one stage",
    ),
    Case(
        "stages with Equinox's gradient",
        lambda: planned(of_equinox),
        TraceError,
        "at pipelines.py:{line} (of_equinox): `loss, grads = eqx.filter_value_and_grad(error)"
        "(weights, batch)`; only mw.value_and_grad and mw.grad mark the loss so that it can be "
        "cut: write `loss, grads = mw.eqx.filter_value_and_grad(error)(weights, batch)`",
    ),
    Case(
        "stages with the gradient of NNX",
        lambda: planned(of_nnx),
        TraceError,
        "write `loss, grads = mw.nnx.value_and_grad(error)(weights, batch)`, or use one stage",
    ),
    Case(
        "stages with statistics of the batch",
        lambda: planned(normalised),
        TraceError,
        "a stage runs micro-batch by micro-batch, but sub at pipelines.py:{line} (normalised.loss) "
        "needs the rows of the whole batch; use one stage",
    ),
    Case(
        "stages of which one has nothing of the micro-batches",
        lambda: planned(joined, stages=4),
        TraceError,
        "the layer from div at pipelines.py:{line} (joined.loss) to dot_general at "
        "pipelines.py:{line} (joined.loss) has no work in the micro-batches: all of it follows "
        "what joins their rows; ask for fewer stages",
    ),
    Case(
        "stages that return runs of rows",
        lambda: planned(two_blocks),
        TraceError,
        "dot_general at pipelines.py:{line} (two_blocks.loss) leaves the loss with several runs "
        "of rows one behind the other, which a step in stages cannot return; return each run",
    ),
    Case(
        "stages of one row",
        lambda: planned(taken, X[:1], 1),
        TraceError,
        "{any}; the batch has one row, so its dim cannot be told from other dims of size 1; pass "
        "two rows or more, or plan without stages (method=mw.IntraOp())",
    ),
    Case(
        "stages of an empty batch",
        lambda: planned(once, X[:0]),
        TraceError,
        "the batch is empty (0 rows), so it has no micro-batches; pass rows",
    ),
)
