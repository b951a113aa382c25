"""`parallelize` with pipeline stages: what a user calls, against JAX on one device."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.layered_steps import CLIPPED, assert_equal, gpt_step, unet_step
from doubles.scanned_steps import second_dim
from meshwise.errors import PlanError, StateLostError
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")


@pytest.fixture
def case() -> tuple[Any, Any, Any, list[float]]:
    """The step, its state, a batch, and the losses of three steps on one device."""
    step, (state, batch) = gpt_step(CLIPPED, num_layers=1)
    one, now = quick_jit(step), state
    losses = []
    for _ in range(3):
        now, loss, _ = one(now, batch)
        losses.append(float(loss))
    return step, state, batch, losses


def test_a_step_in_stages_trains_as_on_one_device(case: Any) -> None:
    step, state, batch, losses = case
    # Planned for one device a stage, run on the virtual devices of this process.
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    staged = mw.parallelize(
        step, method=mw.Auto(stages=2, schedule="1f1b"), cluster=cluster, num_microbatches=2
    )
    plan = staged.plan(state, batch)
    assert len(plan.stages) == 2
    text = staged.explain(state, batch)
    assert text == plan.explain()
    assert "2 stages" in text
    # The stages are on two hosts, as planned.
    assert plan.transfers == "broadcast"
    assert "broadcast between hosts" in text
    assert plan.stages[1].forward_passing == (1.0, 1.0)
    assert plan.stages[0].backward_passing == (1.0, 1.0)
    key = jax.random.key_data(state[2])

    def create(data: Any) -> Any:
        return jax.tree.map(jnp.asarray, (*state[:2], jax.random.wrap_key_data(data), state[3]))

    now = staged.init(create, key, batch)
    # Born on its stage.
    homes = {next(iter(x.sharding.device_set)) for x in jax.tree.leaves(now[0])}
    assert len(homes) == 2
    found = []
    for _ in range(3):
        before = now
        now, loss, aux = staged(now, batch)
        found.append(float(loss))
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    assert set(aux) == {"mean", "norm"}
    stats = staged.stats()
    assert stats["measured_peak_bytes"] > 0
    # The state was overwritten where it lay.
    with pytest.raises(StateLostError, match="was donated to an earlier call"):
        staged(before, batch)


def test_a_batch_of_another_size_is_planned_anew() -> None:
    step, (state, batch) = second_dim()
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    method = mw.Auto(stages=2, transfers="send/recv", schedule="1f1b")
    staged = mw.parallelize(step, method=method, cluster=cluster, num_microbatches=2)
    assert staged.plan(state, batch).transfers == "send/recv"
    state, *_ = staged(state, batch)
    # Its rows would fill two micro-batches of the first batch, and leave one row over.
    odd = jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), batch)
    with pytest.raises(PlanError, match="the batch of 9 is not divisible by num_microbatches=2"):
        staged(state, odd)
    half = jax.tree.map(lambda x: x[: len(x) // 2], batch)
    expected = quick_jit(step)(jax.tree.map(np.array, state), half)
    # The stacks were not given up for nothing.
    found = staged(state, half)
    assert_equal(jax.tree.leaves(found), jax.tree.leaves(expected))


@pytest.mark.parametrize("layer", [0, 1])
def test_two_blocks_of_rows_go_through_the_stages_together(layer: int) -> None:
    """As texts that are chosen and rejected; joined before the first cut, or after it."""
    draw = np.random.default_rng(0).normal
    weights = {n: draw(size=(8, 8)) for n in "abc"}
    batch = {n: draw(size=(8, 8)) for n in ("chosen", "rejected")}

    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            blocks = [batch["chosen"], batch["rejected"]]
            for n, w in enumerate(weights.values()):
                if n == layer:
                    blocks = [jnp.concatenate(blocks)]
                blocks = [jnp.tanh(x @ w) for x in blocks]
            chosen, rejected = jnp.split(blocks[0].sum(-1), 2)
            return -jnp.mean(jax.nn.log_sigmoid(chosen - rejected)), chosen

        (value, chosen), grads = mw.value_and_grad(loss, has_aux=True)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value, chosen

    cluster = mw.Cluster.virtual("3x p3.2xlarge")
    staged = mw.parallelize(
        step, method=mw.Auto(stages=3, schedule="1f1b"), cluster=cluster, num_microbatches=2
    )
    expected = quick_jit(step)(weights, batch)
    found = staged(weights, batch)
    assert_equal(jax.tree.leaves(found), jax.tree.leaves(expected))


def test_a_loop_of_the_update_is_not_that_of_the_micro_batches() -> None:
    """It has as many trips and does more, as in Muon."""
    draw = np.random.default_rng(0).normal
    weights = {n: draw(size=(8, 8)) for n in "ab"}

    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean((jnp.tanh(batch @ weights["a"]) @ weights["b"]) ** 2)

        def turned(_: Any, x: Any) -> Any:
            for _ in range(12):
                x = jnp.tanh(1.5 * x - 0.5 * (x @ x.T) @ x)
            return x

        value, grads = mw.value_and_grad(loss)(weights)
        grads = jax.tree.map(lambda g: jax.lax.fori_loop(0, 2, turned, g), grads)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    method = mw.Auto(stages=2, schedule="1f1b")
    staged = mw.parallelize(step, method=method, cluster=cluster, num_microbatches=2)
    batch = draw(size=(8, 8))
    expected = quick_jit(step)(weights, batch)
    assert_equal(jax.tree.leaves(staged(weights, batch)), jax.tree.leaves(expected))


@pytest.mark.slow
def test_eager_1f1b_from_a_file_trains_without_planning(case: Any, monkeypatch: Any) -> None:
    step, state, batch, losses = case
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    method = mw.Auto(stages=2, schedule="eager-1f1b")
    plan = mw.parallelize(step, method=method, cluster=cluster, num_microbatches=4).plan(
        state, batch
    )
    assert isinstance(plan, mw.Plan)
    assert plan.schedule == "eager-1f1b"
    # 1F1B holds two and one.
    assert [stage.in_flight for stage in plan.stages] == [3, 1]
    read = mw.Plan.from_json(plan.to_json())
    assert read == plan
    assert len(read.decisions) <= sum(len(stage.layers) for stage in read.stages)

    def forbidden(*_: Any) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr("meshwise.planner.step.plan_pipeline", forbidden)
    again = mw.parallelize(step, method=mw.Replay(read))
    assert again.plan(state, batch) == plan
    found = []
    for _ in losses:
        state, loss, _ = again(state, batch)
        found.append(float(loss))
    np.testing.assert_allclose(found, losses, rtol=1e-9)


@pytest.mark.parametrize(
    "schedule",
    ["zero-bubble-h1", pytest.param("eager-1f1b-delayed", marks=pytest.mark.slow)],
)
def test_gradients_of_weights_apart_train_as_on_one_device(case: Any, schedule: Any) -> None:
    step, state, batch, losses = case
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    method = mw.Auto(stages=2, schedule=schedule)
    staged = mw.parallelize(step, method=method, cluster=cluster, num_microbatches=4)
    plan = staged.plan(state, batch)
    assert isinstance(plan, mw.Plan)
    assert mw.Plan.from_json(plan.to_json()) == plan
    for stage in plan.stages:
        assert stage.weights is not None
        assert 0 < stage.weights.seconds < stage.backward_s
    assert plan.table().splits_backward
    if schedule == "zero-bubble-h1":
        # The last stage runs its gradients of weights one micro-batch late.
        assert plan.stages[1].weights is not None
        assert plan.stages[1].weights.waiting in (1, 2)
    else:
        assert (plan.schedule, len(plan.delays)) == ("eager-1f1b", 2)
    found = []
    for _ in losses:
        state, loss, _ = staged(state, batch)
        found.append(float(loss))
    np.testing.assert_allclose(found, losses, rtol=1e-9)


def test_a_plan_of_another_step_is_refused() -> None:
    step, (state, batch) = unet_step()
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    plan = mw.parallelize(
        step, method=mw.Auto(stages=2, schedule="1f1b"), cluster=cluster, num_microbatches=2
    ).plan(state, batch)
    assert isinstance(plan, mw.Plan)

    def refused(changed: mw.Plan, message: str, given: Any = batch) -> None:
        with pytest.raises(PlanError, match=message):
            mw.parallelize(step, method=mw.Replay(changed)).plan(state, given)

    half = jax.tree.map(lambda x: x[: len(x) // 2], batch)
    refused(plan, "the plan is for a batch of 8 rows, this one has 4", half)
    old = tuple(
        dataclasses.replace(
            s, layers=tuple(dataclasses.replace(x, decision=None) for x in s.layers)
        )
        for s in plan.stages
    )
    refused(dataclasses.replace(plan, stages=old), "no decisions about layers")
    more = (*plan.cuts[:-1], (plan.cuts[-1][0], plan.cuts[-1][1] + 1))
    refused(dataclasses.replace(plan, cuts=more), "the plan is for another step: its layers have")
    broken = tuple(dataclasses.replace(d, inputs=d.inputs[1:]) for d in plan.decisions)
    refused(dataclasses.replace(plan, decisions=broken), "layer 0: .*the plan has")
    stage = plan.stages[0]
    layer = dataclasses.replace(stage.layers[0], arguments=stage.layers[0].arguments[1:])
    stage = dataclasses.replace(stage, layers=(layer, *stage.layers[1:]))
    refused(dataclasses.replace(plan, stages=(stage, *plan.stages[1:])), "layer 0: .*other names")


def test_what_stages_cannot_do_yet_is_refused(tmp_path: Any) -> None:
    step, (state, batch) = second_dim()
    staged = mw.parallelize(step, method=mw.Auto(stages=2, schedule="1f1b"), dump_ilp=tmp_path)
    with pytest.raises(PlanError, match="dump_ilp is not supported together with Auto"):
        staged.plan(state, batch)
    with pytest.raises(PlanError, match="a pipeline has many programs; compiled_text"):
        staged.program_text(state, batch)
    with pytest.raises(PlanError, match="prices of other choices are known for plans of one mesh"):
        staged.priced(state, batch)
    with pytest.raises(PlanError, match="prices of other choices are known for plans of one mesh"):
        staged.explain(state, batch, rivals=2)
    for wrong in (0, -1, 1.5, "two"):
        with pytest.raises(PlanError, match="stages must be a whole number of at least 1"):
            mw.Auto(stages=wrong)  # type: ignore[arg-type]
    assert mw.Auto(stages="auto").stages == "auto"
    with pytest.raises(
        PlanError,
        match="the schedules that can run are '1f1b', 'gpipe', 'eager-1f1b', 'zero-bubble-h1', ",
    ):
        mw.Auto(stages=2, schedule="zero-bubble")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="a schedule is of a pipeline; give stages too"):
        mw.Auto(schedule="1f1b")
