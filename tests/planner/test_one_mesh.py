"""From a method and a cluster to a plan: micro-batches by memory, work that runs whole."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwise as mw
from doubles.few import few_rows
from doubles.foreign import scale
from doubles.perceptron import perceptron
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import InfeasibleError
from meshwise.models.gpt import Gpt
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.sizes.gpt_sizes import gpt_config
from oracle.compare import assert_same_x64
from oracle.gpt_problems import Case, gpt_problem
from oracle.parallel import CLUSTER, parallel_step, run_method
from oracle.problem import Problem, reference

pytestmark = pytest.mark.usefixtures("quick_compile")

WIDTH = 8


def _deep(state, batch):
    """Activations far larger than parameters: memory falls with the number of micro-batches."""

    def loss(w):
        h = batch["x"]
        for _ in range(6):
            h = jnp.tanh(h @ w)
        return jnp.mean(h**2)

    value, grad = mw.value_and_grad(loss)(state)
    return state - 0.1 * grad, value


def _problem(rows: int) -> Problem:
    rng = np.random.default_rng(0)
    calls = tuple(({"x": rng.normal(size=(rows, WIDTH))},) for _ in range(3))
    return Problem(step=_deep, state=jnp.asarray(rng.normal(size=(WIDTH, WIDTH))), calls=calls)


@pytest.mark.usefixtures("x64", "quick_compile")
def test_auto_takes_the_fewest_micro_batches_that_fit():
    problem = _problem(2048)
    method = mw.DataParallel()
    peaks = {
        b: parallel_step(problem, method, b).plan(problem.state, *problem.calls[0]).peak_bytes
        for b in (1, 2, 4, 8)
    }
    assert peaks[1] > peaks[2] > peaks[4]
    limit = (peaks[2] + peaks[4]) // 2
    options = {"num_microbatches": "auto", "memory_bytes": limit}
    step = parallel_step(problem, method, **options)
    plan = step.plan(problem.state, *problem.calls[0])
    assert plan.num_microbatches == 4
    assert plan.peak_bytes <= limit
    assert_same_x64(reference(problem), run_method(problem, method, **options))


@pytest.mark.usefixtures("x64")
def test_auto_stays_at_one_where_one_fits():
    problem = _problem(64)
    step = parallel_step(problem, mw.DataParallel(), num_microbatches="auto")
    assert step.plan(problem.state, *problem.calls[0]).num_microbatches == 1


@pytest.mark.usefixtures("x64")
def test_auto_gives_up_with_the_remedies():
    problem = _problem(64)
    step = parallel_step(problem, mw.DataParallel(), num_microbatches="auto", memory_bytes=100)
    with pytest.raises(InfeasibleError, match="100"):
        step.plan(problem.state, *problem.calls[0])


def test_no_more_micro_batches_are_tried_where_they_do_not_help(caplog):
    step, state, rows = perceptron((128,) * 7, 1024)
    counts = [4**k for k in range(6)]

    def planned(num_microbatches, memory_bytes):
        parallel = mw.parallelize(
            step,
            method=mw.DataParallel(),
            cluster=cpu_cluster(8),
            num_microbatches=num_microbatches,
            memory_bytes=memory_bytes,
        )
        return parallel.plan(state, rows)

    def refusal(num_microbatches):
        with pytest.raises(InfeasibleError) as error:
            planned(num_microbatches, 1 << 19)
        return str(error.value)

    texts = [refusal(count) for count in counts]
    assert all("more micro-batches (num_microbatches='auto')" in text for text in texts)
    with caplog.at_level("INFO", "meshwise"):
        caplog.clear()
        text = refusal("auto")
        lines = [record.getMessage() for record in caplog.records]
    tried = [line.split(":")[0] for line in lines if line.startswith("B=")]
    assert tried == ["B=1", "B=2", "B=4"]
    assert "micro-batches up to 4 were tried, and more would not make it much smaller. Us" in text
    # Where many micro-batches make it fit, they are tried.
    enough = min(int(re.search(r"peaks at [^(]*\((\d+) bytes\)", text)[1]) for text in texts)
    plan = planned("auto", enough)
    assert plan.num_microbatches > 4
    assert plan.peak_bytes <= enough


def _small_gpt(scan_layers: bool):
    """Step and shapes of two layers of the size `small`; latency does not rule there."""
    config = gpt_config("small", num_layers=2, dropout=0.1, scan_layers=scan_layers)
    model, tx = Gpt(config), optax.adam(1e-3)

    def create(key):
        params = model.init(key, jnp.zeros((1, config.seq_len), jnp.int32))["params"]
        return {"key": key, "params": params, "opt": tx.init(params)}

    def step(state, batch):
        key, now = jax.random.split(state["key"])

        def loss(params):
            rngs = {"dropout": now}
            logits = model.apply({"params": params}, batch["x"], deterministic=False, rngs=rngs)
            return mean_cross_entropy(logits, batch["y"])

        value, grads = mw.value_and_grad(loss)(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"key": key, "params": params, "opt": opt}, value

    tokens = jax.ShapeDtypeStruct((32, config.seq_len), jnp.int32)
    return step, jax.eval_shape(create, jax.random.key(0)), {"x": tokens, "y": tokens}


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
    ("shape", "b"),
    few_rows(product([(8,), (2, 4), (2, 2, 2)], [1, 2]), [((2, 4), 2)]),
)
def test_nothing_of_a_gpt_runs_quietly_whole(scan_layers, shape, b):
    """At most 1 % of the FLOP and 5 % of the bytes; the plan says how much."""
    step, state, batch = _small_gpt(scan_layers)
    plan = mw.parallelize(step, method=mw.IntraOp(shape), cluster=CLUSTER, num_microbatches=b).plan(
        state, batch
    )
    assert plan.replicated.flop_share <= 0.01
    assert plan.replicated.bytes_share <= 0.05
    assert plan.warnings == ()
    assert "bytes run whole on every device" in " ".join(plan.explain().split())


@cache
def _tiny_gpt() -> Problem:
    return gpt_problem(Case(form="scan", dropout=True))


def test_a_gpt_too_small_to_split_says_so():
    """Where latency is all, running whole is best; that is no secret."""
    problem = _tiny_gpt()
    plan = parallel_step(problem, mw.IntraOp((8,))).plan(problem.state, *problem.calls[0])
    assert plan.replicated.bytes_share > 0.05
    (text,) = plan.warnings
    assert f"{plan.replicated.bytes_share:.1%} of bytes run whole" in text
    assert text in " ".join(plan.explain().split())


def test_work_without_a_rule_is_named():
    def step(w, x):
        return w, jnp.sum(scale(x) @ w)

    plan = mw.parallelize(step, cluster=CLUSTER, method=mw.IntraOp((8,))).plan(
        np.ones((16, 16), np.float32), np.ones((8, 16), np.float32)
    )
    assert any(
        "someone_elses_scale at foreign.py" in text and "no rule" in text for text in plan.warnings
    )
    assert any("% of bytes" in text for text in plan.warnings)
    assert "someone_elses_scale at foreign.py" in plan.explain()


def test_one_device_is_a_mesh_too():
    problem = _tiny_gpt()
    plan = mw.parallelize(problem.step, cluster=cpu_cluster(1)).plan(
        problem.state, *problem.calls[0]
    )
    assert plan.mesh.num_devices == 1
    assert plan.collectives == ()
    assert not any("%" in text for text in plan.warnings)


def test_every_mesh_is_tried_and_the_best_taken():
    problem = _problem(64)
    specs = jax.eval_shape(lambda: (problem.state, *problem.calls[0]))
    times = {
        shape: parallel_step(problem, mw.IntraOp(shape)).plan(*specs).step_time_s
        for shape in CLUSTER.mesh_shapes()
    }
    best = parallel_step(problem, mw.IntraOp()).plan(*specs)
    assert best.step_time_s == min(times.values())
    assert parallel_step(problem, mw.Auto()).plan(*specs).decision == best.decision
