"""Steps that XLA:CPU would not run as written: collectives that race, state overwritten early."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import ProgramError
from meshwise.runtime import compile as compile_module
from meshwise.runtime.hlo.module import parse_module
from meshwise.runtime.hlo.overlap import overlapping
from meshwise.spmd import lower
from meshwise.spmd.program import jitted_step

ROWS = np.linspace(-1, 1, 16 * 64, dtype=np.float32).reshape(16, 64)


def _check(step, state, method):
    """The step run by a method equals the step as written."""
    want = jax.jit(step)(state, ROWS)
    parallel = mw.parallelize(step, method=method, cluster=cpu_cluster(8))
    (text,) = parallel.compiled_text(state, ROWS).values()
    got = parallel(jax.tree.map(jnp.copy, state), ROWS)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return text


def _step_after_layers(state, rows):
    """Gradients of the last kernel, which nothing orders against the layers' backward pass."""

    def loss(state):
        def layer(h, w):
            return jnp.tanh(h @ w[0]) @ w[1], None

        h, _ = jax.lax.scan(layer, rows, state["layers"])
        return jnp.mean((h @ state["out"]) ** 2)

    value, gradients = mw.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradients), value


def _layers():
    rng = np.random.default_rng(0)
    layers = (rng.normal(size=(3, 2, 64, 64)) / 8).astype(np.float32)
    return {"layers": jnp.asarray(layers), "out": jnp.ones((64, 8)) / 8}


@pytest.mark.parametrize(
    "method", [mw.Zero3(), mw.DataParallel(), mw.Megatron(dp=1, tp=8)], ids=str
)
def test_collectives_and_loops_run_one_after_the_other(method, monkeypatch):
    text = _check(_step_after_layers, _layers(), method)
    assert overlapping(parse_module(text)) == ()
    # Without the order of `spmd.order` they would not.
    monkeypatch.setattr(lower, "communicates", lambda *args: False)
    with pytest.raises(ProgramError, match="do not wait for the loop before them"):
        _check(_step_after_layers, _layers(), method)


def test_a_step_that_overwrites_too_early_is_compiled_again(monkeypatch):
    options = []

    def spied(*args, **more):
        lowered = jitted_step(*args, **more).lower
        return SimpleNamespace(lower=lambda *specs: Lowered(lowered(*specs)))

    class Lowered:
        def __init__(self, lowered):
            self.lowered = lowered

        def compile(self, compiler_options=None):
            options.append(compiler_options)
            return self.lowered.compile(compiler_options=compiler_options)

    monkeypatch.setattr(compile_module, "jitted_step", spied)
    _check(_step_after_layers, _layers(), mw.DataParallel())
    assert options == [None]
    monkeypatch.setattr(compile_module, "overwritten_too_early", lambda *args: (0,))
    _check(_step_after_layers, _layers(), mw.DataParallel())
    assert options[1:] == [None, {"xla_cpu_copy_insertion_use_region_analysis": False}]
