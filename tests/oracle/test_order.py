"""Loops of odd kinds after a loop with collectives: they neither race nor change the numbers (I1).

On CPU a program whose collectives may race is refused when it is compiled, so that running it says
that they do not.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import meshwise as mw
from oracle.compare import assert_same_x64
from oracle.parallel import run_method, run_random
from oracle.problem import Problem, reference
from oracle.step_problems import weights
from programs.ways import CLUSTER

pytestmark = pytest.mark.usefixtures("x64", "quick_steps")


def _two(second) -> Problem:
    """A scan over layers, and something after it that does not read what it makes."""
    names = ("first", "second", "last", "scale", "x")
    drawn = weights((3, 8, 8), (3, 8, 8), (8, 8), (8,), (16, 8)).values()
    params = dict(zip(names, drawn, strict=True))
    x = params.pop("x")

    def loss(p, batch):
        h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), batch["x"], p["first"])
        return second(p, batch["x"]) + jnp.mean((h @ p["last"]) ** 2)

    def step(p, batch):
        value, grads = mw.value_and_grad(loss)(p, batch)
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads), value

    return Problem(step=step, state=params, calls=(({"x": x},),))


def _folded_carry(p, x):
    """XLA knows what becomes of the scalar, so that it waits for nothing."""

    def body(carry, w):
        h, s = carry
        return (jnp.tanh(h @ w) * p["scale"], s * 1.0), None

    (h, s), _ = lax.scan(body, (x, p["scale"][0]), p["second"])
    return jnp.mean((h @ p["last"]) ** 2) + s


def _one_trip(p, x):
    def body(carry, w):
        h, s = carry
        return (jnp.tanh(h @ w) * p["scale"], s * 0.5 + 1), None

    (h, s), _ = lax.scan(body, (x, jnp.float64(1)), p["second"][:1])
    return jnp.mean((h @ p["last"]) ** 2) + s * jnp.mean(h)


def _integers(p, x):
    def body(i, places):
        scores = jnp.tanh(x[places % 16] @ p["last"])
        return (jnp.argmax(lax.stop_gradient(scores), axis=-1) + i) % 16

    places = lax.fori_loop(0, 3, body, jnp.arange(16))
    return jnp.mean(x[places] @ p["last"])


def _nothing_carried(p, x):
    def body(_, __):
        return None, jnp.tanh(x @ p["last"]) * p["scale"]

    _, ys = lax.scan(body, None, None, length=3)
    return jnp.mean(ys @ p["last"])


def _passed_on(p, x):
    h, w, s = lax.cond(
        jnp.sum(x) > 0,
        lambda w, s: (jnp.tanh(x @ w), w, s),
        lambda w, s: (jnp.sin(x) @ w, w, s),
        p["last"],
        p["scale"],
    )
    return jnp.mean((h @ w) * s)


@pytest.mark.parametrize("method", [mw.Megatron(2, 4), mw.IntraOp((2, 4))], ids=str)
@pytest.mark.parametrize(
    "same",
    [lambda s, w: s + 0.0, lambda s, w: s[::-1][::-1], lambda s, w: jnp.where(True, s, w)],
    ids=["add", "rev", "where"],
)
def test_a_small_carry_that_xla_takes_out_of_its_loop(same, method):
    """What a loop makes of its smallest result may say nothing, and what it reads first neither."""
    names = ("w1", "b1", "w2", "scale", "layers", "x")
    sizes = ((8, 16), (16,), (16, 8), (8,), (3, 8, 8), (16, 8))
    params = dict(zip(names, weights(*sizes).values(), strict=True))
    x = params.pop("x")

    def loss(p, batch):
        def body(carry, w):
            h, s = carry
            return (jnp.tanh(h @ w), same(s, w[0])), None

        (h, s), _ = lax.scan(body, (batch["x"], p["scale"]), p["layers"])
        (h, t), _ = lax.scan(body, (h, jnp.zeros(8)), p["layers"] * 0.5)
        return jnp.mean((h @ p["w1"] @ p["w2"]) ** 2) + jnp.sum(s * p["scale"]) * 0.01 + jnp.sum(t)

    def step(p, batch):
        value, grads = mw.value_and_grad(loss)(p, batch)
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads), value

    problem = Problem(step=step, state=params, calls=(({"x": x},),))
    # Small arrays are split where links cost nothing.
    got = run_method(problem, method, cluster=CLUSTER)
    assert_same_x64(reference(problem), got)


KINDS = [_folded_carry, _one_trip, _integers, _nothing_carried, _passed_on]


@pytest.mark.parametrize("second", KINDS, ids=lambda f: f.__name__)
def test_a_second_loop_means_the_same(second):
    problem = _two(second)
    want = reference(problem)
    assert_same_x64(want, run_method(problem, mw.Megatron(2, 4)))
    assert_same_x64(want, run_random(problem, (8,), 1))
