from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import meshwise as mw
from meshwise.trace.arange import with_batch_dims
from meshwise.trace.flatten import flatten
from meshwise.trace.program import Program

ROWS = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)
LABELS = np.array([3, 1, 0, 2, 2, 1, 0, -1], np.int32)


def program_of(fun: object, *args: object) -> Program:
    return with_batch_dims(flatten(jax.make_jaxpr(fun)(*args)))


def node_named(program: Program, name: str) -> object:
    (node,) = [node for node in program.nodes if node.name == name]
    return node.equation.params["dimension_numbers"]


def test_position_becomes_a_batch_dim() -> None:
    program = program_of(lambda x, y: x[jnp.arange(8), y], ROWS, LABELS)
    assert node_named(program, "gather").operand_batching_dims == (0,)
    assert "concatenate" not in [node.name for node in program.nodes]


def test_the_gradient_too() -> None:
    program = program_of(jax.grad(lambda x, y: x[jnp.arange(8), y].sum()), ROWS, LABELS)
    assert node_named(program, "scatter-add").operand_batching_dims == (0,)


def test_another_order_is_left_alone() -> None:
    program = program_of(lambda x, y: x[jnp.arange(8)[::-1], y], ROWS, LABELS)
    assert node_named(program, "gather").operand_batching_dims == ()


def test_an_argument_is_left_alone() -> None:
    program = program_of(lambda x, i, y: x[i, y], ROWS, np.arange(8, dtype=np.int32), LABELS)
    assert node_named(program, "gather").operand_batching_dims == ()


def test_loss_by_position_in_micro_batches() -> None:
    def step(w: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def loss(w: jax.Array) -> jax.Array:
            logits = jax.nn.log_softmax(batch["x"] @ w)
            return -logits[jnp.arange(8), batch["y"]].mean()

        value, grad = mw.value_and_grad(loss)(w)
        return w - grad, value

    batch = {"x": jnp.asarray(ROWS) / 32, "y": jnp.asarray(LABELS)}
    weights = jnp.eye(4)
    parallel = mw.parallelize(step, method=mw.DataParallel(), num_microbatches=2, donate_argnums=())
    for found, wanted in zip(parallel(weights, batch), step(weights, batch), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
