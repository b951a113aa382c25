"""What the loop over micro-batches sums: in the type of one device's sum, as what is read later."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from meshwise.trace.program import Node
from meshwise.trace.step import TracedStep
from oracle.one_device import descent, run_traced, traced
from oracle.problem import run_once

pytestmark = pytest.mark.usefixtures("quick_compile")

B = 512
WIDTH = 4
PARAMS = {
    "w": np.zeros((WIDTH, WIDTH), np.float32),
    "b": np.zeros(WIDTH, np.float32),
    "table": np.zeros((3, WIDTH), np.float32),
}
# Each row adds one to each gradient: bfloat16 has no number between 256 and 258.
BATCH = {"x": np.ones((B, WIDTH), np.float32), "at": np.ones(B, np.int32)}


def narrow(p: Any, batch: Any) -> Any:
    """Products in bfloat16, parameters in float32, as mixed precision has them."""
    w, b, table = (p[name].astype(jnp.bfloat16) for name in ("w", "b", "table"))
    x = batch["x"].astype(jnp.bfloat16)
    return jnp.sum(((x @ w + b) * x + table[batch["at"]]).astype(jnp.float32))


def tied(p: Any, batch: Any) -> Any:
    """A weight that is read twice, the second time transposed."""
    w = p["w"].astype(jnp.bfloat16)
    x = batch["x"].astype(jnp.bfloat16)
    return jnp.sum((x @ w).astype(jnp.float32)) + jnp.sum((x @ w.T).astype(jnp.float32))


def loop(step: TracedStep) -> Node:
    (node,) = [node for node in step.program.nodes if node.bodies]
    return node


def sums(step: TracedStep) -> list[tuple[str, tuple[int, ...]]]:
    """Types and shapes of what the loop carries, sorted."""
    node = loop(step)
    assert node.structure is not None
    avals = [step.program.avals[node.inputs[k]] for k, _ in node.structure.carries]
    return sorted((aval.dtype.name, aval.shape) for aval in avals)


@pytest.mark.parametrize("loss", [narrow, tied], ids=lambda f: f.__name__)
def test_gradients_of_wide_parameters_are_summed_wide(loss):
    cut = traced(descent(loss), PARAMS, BATCH, b=B, num_devices=1)
    got, _ = run_traced(cut, PARAMS, BATCH)
    want, _ = run_once(descent(loss), PARAMS, BATCH)
    terms = 2 if loss is tied else 1
    np.testing.assert_allclose(got["w"], -0.1 * terms * B, rtol=1e-6)
    for name in ("w", "b"):
        np.testing.assert_array_equal(got[name], want[name], name)


def test_rows_of_a_table_are_summed_wide():
    """On one device a scatter adds up all rows in bfloat16, so it is no reference here."""
    cut = traced(descent(narrow), PARAMS, BATCH, b=B, num_devices=1)
    got, _ = run_traced(cut, PARAMS, BATCH)
    np.testing.assert_allclose(got["table"][1], -0.1 * B, rtol=1e-6)


def test_each_gradient_has_one_sum_of_its_own_shape():
    cut = traced(descent(narrow), PARAMS, BATCH, b=B, num_devices=1)
    wanted = [(), *(leaf.shape for leaf in PARAMS.values())]
    assert sums(cut) == sorted(("float32", shape) for shape in wanted)
    cut = traced(descent(tied), PARAMS, BATCH, b=B, num_devices=1)
    assert sums(cut) == [("float32", ()), ("float32", (WIDTH, WIDTH))]


def test_a_sum_that_is_read_before_it_moves_too_is_carried_once():
    """The gradient of one product, as it is made and transposed."""

    def step(p: Any, batch: Any) -> Any:
        grad = batch["x"].T @ (batch["x"] @ p["w"])
        return {"w": p["w"] - grad.T, "b": p["b"], "table": p["table"]}, grad

    cut = traced(step, PARAMS, BATCH, b=2, num_devices=1)
    assert sums(cut) == [("float32", (WIDTH, WIDTH))]


def test_moves_of_float32_gradients_stay_in_the_loop_too():
    """Then each term is written as it is read after the loop, and no sum is turned there."""

    def loss(p: Any, batch: Any) -> Any:
        return jnp.mean((batch["x"] @ p["w"] + p["b"]) ** 2)

    def step(p: Any, batch: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(p, batch)
        return jax.tree.map(lambda q, g: q - 0.1 * g, p, grads), value

    cut = traced(step, PARAMS, BATCH, b=2, num_devices=1)
    after = cut.program.nodes[cut.program.nodes.index(loop(cut)) + 1 :]
    assert not {"transpose", "reshape"} & {node.name for node in after}


def test_a_sum_is_made_narrow_once():
    """As momentum in bfloat16 has it: terms that are narrow would lose what is below 1 of 256."""

    def step(p: Any, batch: Any) -> Any:
        grad = jnp.sum(batch["x"], axis=0)
        return p | {"b": p["b"] + grad.astype(jnp.bfloat16)}, None

    cut = traced(step, PARAMS, BATCH, b=B, num_devices=1)
    assert sums(cut) == [("float32", (WIDTH,))]
    got, _ = run_traced(cut, PARAMS, BATCH)
    np.testing.assert_array_equal(got["b"], np.full(WIDTH, B, np.float32))


def turned(p: Any, batch: Any) -> Any:
    """A weight that is read transposed, reversed, and as rows of a bias."""
    h = jnp.tanh(batch["x"] @ p["w"].T + p["b"])
    return jnp.mean((h @ jnp.flip(p["w"], 0)) ** 2)


def test_turned_weights_are_no_copies_before_the_loop():
    """In the loop what reads them does it; before it they would be kept for all micro-batches."""
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=leaf.shape) for name, leaf in PARAMS.items()}
    batch = {"x": rng.normal(size=(8, WIDTH)), "at": BATCH["at"][:8]}
    cut = traced(descent(turned), params, batch, b=4, num_devices=1)
    node = loop(cut)
    before = {n.name for n in cut.program.nodes[: cut.program.nodes.index(node)]}
    assert not before & {"transpose", "rev"}
    assert {"transpose", "rev", "broadcast_in_dim"} <= {n.name for n in node.bodies[0].nodes}
    want = run_once(descent(turned), params, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6),
        want,
        run_traced(cut, params, batch),
    )


def test_a_turned_weight_that_is_a_result_too_is_made_for_it():
    def step(p: Any, batch: Any) -> Any:
        w = p["w"].T
        return p | {"w": w}, jnp.sum(batch["x"] @ w)

    cut = traced(step, PARAMS, BATCH, b=2, num_devices=1)
    got, _ = run_traced(cut, PARAMS | {"w": np.arange(16.0).reshape(4, 4)}, BATCH)
    np.testing.assert_array_equal(got["w"], np.arange(16.0).reshape(4, 4).T)
