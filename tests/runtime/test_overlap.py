"""Detection of collectives that may start while an earlier loop with collectives still runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwise.runtime.hlo.module import parse_module
from meshwise.runtime.hlo.overlap import overlapping

OPTIONS = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def _loop(x, rows):
    """Three trips with a collective each, which pass `rows` on."""

    def body(carry):
        i, x, rows = carry
        return i + 1, jnp.tanh(lax.psum(x, "b")), rows

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x, rows))


def _independent(x, rows):
    return _loop(x, rows)[1], lax.all_gather(rows * 2, "a")


def _after_what_the_loop_passes_on(x, rows):
    _, x, rows = _loop(x, rows)
    return x, lax.all_gather(rows * 2, "a")


def _two_loops(x, rows):
    return _loop(x, rows)[1], _loop(rows, x)[1]


def _after_a_branch(x, rows):
    y = lax.cond(x[0] > 0, lambda: lax.psum(x, "b"), lambda: x)
    return y, lax.all_gather(rows * 2, "a")


def _dependent(x, rows):
    _, x, _ = _loop(x, rows)
    return x, lax.all_gather(rows * x[0], "a")


def _one_loop_after_the_other(x, rows):
    return _loop(*_loop(x, rows)[1:])[1], rows


def _before_the_loop(x, rows):
    return _loop(x + lax.psum(rows, "a")[0], rows)[1], rows


def _loop_without_collectives(x, rows):
    x = lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x), x)
    return x, lax.all_gather(rows * 2, "a")


def _found(fun):
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))
    local = jax.shard_map(fun, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    large, small = (jax.ShapeDtypeStruct((n,), jnp.float32) for n in (512, 8))
    compiled = jax.jit(local, compiler_options=OPTIONS).lower(large, small).compile()
    return overlapping(parse_module(compiled.as_text()))


@pytest.mark.parametrize(
    "fun",
    [_independent, _after_what_the_loop_passes_on, _two_loops, _after_a_branch],
)
def test_what_does_not_wait_is_found(fun):
    assert len(_found(fun)) == 1


@pytest.mark.parametrize(
    "fun",
    [_dependent, _one_loop_after_the_other, _before_the_loop, _loop_without_collectives],
)
def test_what_waits_is_left_alone(fun):
    assert _found(fun) == ()
