"""Which values XLA:CPU stores, and which it computes again: on small programs, and as compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.memory.cpu.target import CPU
from meshwise.memory.local_program import InstructionKind, LocalProgram, LocalValue
from oracle.tolerances import MEMORY_ABOVE, MEMORY_BELOW

INPUT, FUSIBLE, OPAQUE = InstructionKind.INPUT, InstructionKind.FUSIBLE, InstructionKind.OPAQUE

Row = tuple[InstructionKind, tuple[int, ...], int]

# A product of two values that lie in memory, read by what a dense product reads.
FORWARD: list[Row] = [
    (INPUT, (), 64),
    (OPAQUE, (0,), 64),
    (OPAQUE, (0,), 64),
    (FUSIBLE, (1, 2), 64),
    (FUSIBLE, (3, 1), 64),
    (OPAQUE, (4,), 64),
]


def stored(*rows: Row, outputs: tuple[int, ...]) -> set[int]:
    """Return the values of a program that have a buffer."""
    program = LocalProgram()
    for kind, inputs, num_bytes in rows:
        program.add(LocalValue(kind, inputs, num_bytes, 0, 0))
    program.outputs.extend(outputs)
    return {b for step in CPU.instructions(program).steps for b in step.defines}


def test_a_value_of_two_is_stored_where_one_reader_needs_another() -> None:
    rows: list[Row] = [*FORWARD, (FUSIBLE, (5, 3), 64)]
    assert stored(*rows, outputs=(6,)) == {1, 2, 3, 4, 5, 6}


def test_a_value_of_two_is_computed_again_by_readers_that_do_not_need_each_other() -> None:
    rows: list[Row] = [*FORWARD, (FUSIBLE, (2, 3), 64)]
    assert stored(*rows, outputs=(5, 6)) == {1, 2, 4, 5, 6}


@pytest.mark.parametrize("small", [8, 32])
def test_a_value_of_one_and_of_small_ones_is_computed_again(small: int) -> None:
    rows: list[Row] = [*FORWARD, (FUSIBLE, (5, 3), 64)]
    rows[2] = (OPAQUE, (0,), small)
    assert stored(*rows, outputs=(6,)) == {1, 2, 4, 5, 6}


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices")
def test_memory_of_gates_as_compiled() -> None:
    """`g * sigmoid(g)` is read in the forward and in the backward pass."""

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for gate, up, down in params:
                h = h + (jax.nn.silu(h @ gate) * (h @ up)) @ down
            return jnp.mean(h**2)

        value, grads = mw.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    wide, narrow = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 256), (256, 64)))
    args = [(wide, wide, narrow)] * 4, jax.ShapeDtypeStruct((4096, 64), jnp.float32)
    parallel = mw.parallelize(step, method=mw.DataParallel())
    ratio = parallel.plan(*args).peak_bytes / parallel.measured_peak_bytes(*args)
    assert 1 - MEMORY_BELOW <= ratio <= 1 + MEMORY_ABOVE
