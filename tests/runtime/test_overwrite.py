"""Detection of donated arguments that a compiled program overwrites too early."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.runtime.hlo.module import parse_module
from meshwise.runtime.hlo.overwrite import overwritten_too_early

PARAMS = np.arange(64.0, dtype=np.float32).reshape(8, 8) / 64
ROWS = np.ones((16, 8), np.float32)
REGION_ANALYSIS = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_cpu_copy_insertion_use_region_analysis": True,
}


def _read_by_a_loop(p, rows):
    return p - 0.1, jax.lax.map(lambda row: jnp.tanh(row @ p).sum(), rows)


def _loop_before_the_update(p, rows):
    sums = jax.lax.map(lambda row: jnp.tanh(row @ p).sum(), rows)
    return p - sums.mean(), sums


def _without_loop(p, rows):
    return p - 0.1, jnp.tanh(rows @ p)


def _updated_by_the_loop(p, rows):
    return jax.lax.scan(lambda p, row: (p + row, (p * row).sum()), p, rows)


def _lowered(fun, donated=0):
    jitted = jax.jit(fun, donate_argnums=donated, compiler_options=REGION_ANALYSIS)
    return jitted.lower(PARAMS, ROWS)


def test_a_read_after_the_update_is_found():
    text = _lowered(_read_by_a_loop).compile().as_text()
    assert overwritten_too_early(text, parse_module(text)) == (0,)
    text = _lowered(_read_by_a_loop, donated=()).compile().as_text()
    assert overwritten_too_early(text, parse_module(text)) == ()


@pytest.mark.parametrize("fun", [_loop_before_the_update, _without_loop, _updated_by_the_loop])
def test_what_is_in_order_is_left_alone(fun):
    text = _lowered(fun).compile().as_text()
    assert overwritten_too_early(text, parse_module(text)) == ()
