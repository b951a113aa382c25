"""Steps with padded dims, under decisions that nothing has optimised, against one device (I1)."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwise as mw
from doubles.few import few_rows
from doubles.random_decision import random_decision
from meshwise.models.losses import masked_mean_cross_entropy
from meshwise.plan.verify import verify_decision
from meshwise.trace.padding.choose import padded_dims, with_padding
from oracle.compare import assert_same_x64
from oracle.gpt_problems import Case, gpt_problem
from oracle.parallel import CLUSTER, decided_step, traced
from oracle.problem import Problem, Trajectory, reference, run
from oracle.tolerances import ADAM_EPS

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

VOCAB = 53
WIDE = {"dtype": "float64", "param_dtype": "float64"}


def run_padded(
    problem: Problem, sizes: dict[int, int], b: int, shape: tuple[int, ...], seed: int
) -> Trajectory:
    """Run under a random decision, padded; `sizes` is what must be found worth a try."""
    step = traced(problem, b)
    dims = padded_dims(step, 8)
    assert {dim.size: dim.padded_size for dim in dims} == sizes
    longer, mesh = with_padding(step, dims), CLUSTER.mesh(shape)
    assert [aval.shape for aval in longer.in_avals] == [aval.shape for aval in step.in_avals]
    decision = random_decision(longer.graph, mesh, random.Random(seed))
    verify_decision(longer.graph, decision, mesh)
    return run(decided_step(longer, decision, mesh), problem)


def perceptron() -> Problem:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731

    def loss(params, batch):
        hidden = jnp.tanh(batch["x"] @ params["up"] + params["bias"])
        return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)

    def step(params, batch):
        value, grads = mw.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = {"up": draw(8, 13), "bias": draw(13), "down": draw(13, 4)}
    calls = tuple(({"x": draw(16, 8), "y": draw(16, 4)},) for _ in range(2))
    return Problem(step=step, state=params, calls=calls)


@pytest.mark.parametrize(("b", "shape"), [(1, (2, 4)), (2, (8,))])
def test_hidden_layer_of_13(shape, b):
    problem = perceptron()
    assert_same_x64(reference(problem), run_padded(problem, {13: 16}, b, shape, seed=b))


def tied_softmax() -> Problem:
    """A GPT without its middle: tied embedding, masked cross entropy, Adam with a weight decay."""
    rng = np.random.default_rng(1)
    optimizer = optax.adamw(1e-2, eps=ADAM_EPS, weight_decay=0.1)

    def loss(params, batch):
        hidden = params["table"][batch["x"]]
        hidden, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), hidden, params["layers"])
        logits = hidden @ params["table"].T + params["bias"]
        return masked_mean_cross_entropy(logits, batch["y"], batch["mask"])

    def step(state, batch):
        params, opt = state
        value, grads = mw.value_and_grad(loss)(params, batch)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    params = {
        "table": jnp.asarray(rng.normal(size=(VOCAB, 8))),
        "bias": jnp.asarray(rng.normal(size=VOCAB)),
        "layers": jnp.asarray(rng.normal(size=(2, 8, 8))),
    }
    calls = tuple(
        (
            {
                "x": rng.integers(0, VOCAB, (16, 4), dtype=np.int32),
                "y": rng.integers(0, VOCAB, (16, 4), dtype=np.int32),
                "mask": rng.random((16, 4)) < 0.7,
            },
        )
        for _ in range(2)
    )
    return Problem(step=step, state=(params, optimizer.init(params)), calls=calls)


@pytest.mark.parametrize(("b", "shape"), few_rows([(1, (8,)), (2, (2, 4))], [(2, (2, 4))]))
def test_tied_vocabulary_of_53(b, shape):
    problem = tied_softmax()
    got = run_padded(problem, {VOCAB: 56}, b, shape, seed=b)
    assert_same_x64(reference(problem), got)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_tied_vocabulary_of_53_under_more_decisions(seed):
    problem = tied_softmax()
    shape = ((2, 4), (4, 2), (2, 2, 2))[seed % 3]
    got = run_padded(problem, {VOCAB: 56}, 1 + seed % 2, shape, seed)
    assert_same_x64(reference(problem), got)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["unrolled", "scan"])
@pytest.mark.parametrize("b", [1, 2, 4])
@pytest.mark.parametrize("loss", ["mean", "masked"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_gpt_with_a_vocabulary_of_53(form, b, loss, optimizer):
    case = Case(form, optimizer, b == 2, loss, remat=b == 4, vocab=VOCAB, **WIDE)
    problem, shape = gpt_problem(case), (2, 2, 2) if b == 2 else (2, 4)
    assert_same_x64(reference(problem), run_padded(problem, {VOCAB: 56}, b, shape, seed=b))
