"""`Follow` of a pipeline: evaluation on its stages, against JAX on one device."""

from __future__ import annotations

import warnings
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.layered_steps import CLIPPED, gpt_step, host, model, unet_step
from meshwise.errors import InfeasibleError, PlanError, PlanWarning
from meshwise.models.gpt import Gpt
from meshwise.models.llama import Llama, LlamaConfig
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.named import model_config
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.plan.plan import Plan
from meshwise.schedules.inference import INFERENCE
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64", "layers_known")

CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")
SIZES = {"num_layers": 1, "seq_len": 8, "dtype": "float64", "param_dtype": "float64"}


def trained(step: Any, args: Any, **options: Any) -> tuple[Any, Any, Any]:
    """A pipeline after a step, its state, the batch."""
    asked = {
        "method": mw.Auto(stages=2, schedule="1f1b"),
        "cluster": CLUSTER,
        "num_microbatches": 2,
    } | options
    staged = mw.parallelize(step, **asked)
    state, batch = args
    state, *_ = staged(state, batch)
    return staged, state, batch


def evaluate_gpt(state: Any, batch: Any) -> Any:
    params, _, key, count = state
    logits: Any = Gpt(gpt_config("tiny", **SIZES)).apply({"params": params}, batch["x"])
    draw = jax.random.normal(jax.random.fold_in(key, count), ())
    loss = mean_cross_entropy(logits, batch["y"])
    # Of the last stage, of any, of none, an argument, a constant.
    return {"loss": loss, "logits": logits, "draw": draw, "x": batch["x"], "two": 2.0}


@cache
def gpt_programs() -> tuple[mw.ParallelStep, mw.ParallelStep]:
    """A step in two stages and the evaluation that follows it, which tests share."""
    step, _ = gpt_step(CLIPPED, num_layers=1)
    staged = mw.parallelize(
        step, method=mw.Auto(stages=2, schedule="1f1b"), cluster=CLUSTER, num_microbatches=2
    )
    return staged, mw.parallelize(evaluate_gpt, method=mw.Follow(staged))


def test_a_step_that_does_not_follow_is_told_of_follow() -> None:
    _, (state, batch) = gpt_step(CLIPPED, num_layers=1)
    state, *_ = gpt_programs()[0](state, batch)

    def total(state: Any, batch: Any) -> Any:
        del batch
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(state[0]))

    plain = mw.parallelize(total, cluster=CLUSTER)
    with pytest.warns(PlanWarning, match=r"total: arguments lie on several .*method=mw\.Follow\("):
        found = plain(state, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(plain(state, batch)) == float(found)


def assert_same(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(host(a), host(b), rtol=1e-9, atol=1e-12),
        found,
        expected,
    )


@pytest.mark.slow
def test_a_gpt_is_evaluated_where_it_is_trained() -> None:
    staged, evaluation = gpt_programs()
    _, (state, batch) = gpt_step(CLIPPED, num_layers=1)
    state, *_ = staged(state, batch)
    plan = evaluation.plan(state, batch)
    assert plan.schedule == INFERENCE.name
    assert [stage.first_layer for stage in plan.stages] == [0, 1]
    assert mw.Plan.from_json(plan.to_json()) == plan
    # The head is the transposed embedding.
    embedding = "0/0/token_embedding/embedding"
    assert plan.warnings == (f"{embedding} is sent from stage 0 to stage 1 in each call",)
    assert "Dense products and convolutions, of each stage alone" in str(plan)
    expected = quick_jit(evaluate_gpt)(host_state(state), batch)
    for rows in (batch, jax.tree.map(np.asarray, batch)):
        found = evaluation(state, rows)
        assert_same(found, expected)
        assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(found))
    # The activation, not what is normed of it, and the head cross, once.
    config = gpt_config("tiny")
    sent = (batch["x"].size + config.vocab_size) * config.hidden * 8
    assert evaluation.stats()["bytes_between_meshes"] == sent
    assert all(not x.is_deleted() for x in jax.tree.leaves(state))
    # Training goes on with the same arrays.
    state, loss, _ = staged(state, batch)
    assert np.isfinite(float(loss))


def host_state(state: Any) -> Any:
    params, opt, key, count = state
    return (*jax.tree.map(host, (params, opt)), key_here(key), host(count))


def key_here(key: Any) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(host(jax.random.key_data(key))))


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """For each array of numbers that is put somewhere its identity and the bytes that cross."""
    from meshwise.runtime.transports.tile_copier import TileCopier

    found: list[tuple[int, int]] = []
    put = TileCopier.put

    def spy(self: Any, value: Any, sharding: Any, **options: Any) -> Any:
        if isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            found.append((id(value), self.copies(value, sharding).crossing_bytes))
        return put(self, value, sharding, **options)

    monkeypatch.setattr(TileCopier, "put", spy)
    return found


def test_parameters_stay_where_training_left_them(crossed: list[tuple[int, int]]) -> None:
    staged, evaluation = gpt_programs()
    _, (state, batch) = gpt_step(CLIPPED, num_layers=1)
    state, *_ = staged(state, batch)
    evaluation(state, batch)
    crossed.clear()
    evaluation(state, batch)
    ids = set(map(id, jax.tree.leaves(state[0])))
    sent = [size for value, size in crossed if value in ids]
    assert len(sent) == len(ids)
    assert not any(sent)


def test_a_parameter_of_two_stages_is_sent_and_a_skip_passes_by() -> None:
    step, args = unet_step()
    staged, state, batch = trained(step, args, method=mw.Auto(stages=4, schedule="1f1b"))

    def plain(params: Any, x: Any) -> Any:
        first = jnp.tanh(x @ params["shared"])
        middle = jax.nn.relu(first @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
        low = middle @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
        high = jax.nn.softmax(low * 2.0) @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"]
        last = jnp.tanh((high + first) @ params["shared"].T)
        out = last @ params["Dense_3"]["kernel"] + params["Dense_3"]["bias"]
        return out * jnp.max(middle, axis=1, keepdims=True)

    evaluation = mw.parallelize(plain, method=mw.Follow(staged))
    found = evaluation(state[0], batch["x"])
    assert_same(found, quick_jit(plain)(jax.tree.map(host, state[0]), batch["x"]))
    plan = evaluation.plan(state[0], batch["x"])
    assert plan.warnings == ("0/shared is sent from stage 0 to stage 2 in each call",)
    assert [stage.first_layer for stage in plan.stages] == [0, 1, 2, 3]


def scanned_net(state: Any, x: Any) -> Any:
    """Layers under `scan`, between a product and the same one transposed."""
    params, _ = state
    x, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x @ params["ends"], params["stack"])
    return x @ params["ends"].T


def scanned_step(state: Any, batch: Any) -> Any:
    params, momentum = state
    loss, grads = mw.value_and_grad(
        lambda p: jnp.mean((scanned_net((p, momentum), batch["x"]) - batch["y"]) ** 2)
    )(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return (jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum), loss


@cache
def scanned_programs() -> tuple[Any, mw.ParallelStep, Any, Any]:
    """A pipeline after a step, the evaluation that follows it, its state, the batch."""
    # Large enough that either stage has two layers of the stack.
    draw = np.random.default_rng(2).normal
    shapes = {"ends": (6, 128), "stack": (4, 128, 128)}
    params = {name: jnp.asarray(draw(size=shape) / 12) for name, shape in shapes.items()}
    rows = {name: jnp.asarray(draw(size=(512, 6))) for name in "xy"}
    args = (params, jax.tree.map(jnp.zeros_like, params)), rows
    staged, state, batch = trained(scanned_step, args)
    return staged.plan(*args), mw.parallelize(scanned_net, method=mw.Follow(staged)), state, batch


def test_stacks_of_layers_are_evaluated() -> None:
    _, evaluation, state, batch = scanned_programs()
    expected = quick_jit(scanned_net)(jax.tree.map(host, state), batch["x"])
    assert_same(evaluation(state, batch["x"]), expected)


def test_stacks_of_layers_stay_on_their_stages(crossed: list[tuple[int, int]]) -> None:
    plan, evaluation, state, batch = scanned_programs()
    held = stage_layers(plan)
    assert held == [{f"0/0/stack[{n}]" for n in layers} for layers in ((0, 1), (2, 3))]
    followed = evaluation.plan(state, batch["x"])
    assert stage_layers(followed) == held
    # No stack is.
    assert followed.warnings == ("0/0/ends is sent from stage 0 to stage 1 in each call",)
    rows = jax.device_put(batch["x"], state[0]["ends"].sharding)
    evaluation(state, rows)
    crossed.clear()
    evaluation(state, rows)
    # The activation and the product that is transposed.
    sent = 8 * 128 * (len(rows) + 6)
    assert evaluation.stats()["bytes_between_meshes"] == sent
    assert sum(size for _, size in crossed) == sent


def stage_layers(plan: Plan) -> list[set[str]]:
    """For each stage its layers of the stacks of parameters, by name."""
    names = [{x.name for k in stage.layers for x in k.arguments} for stage in plan.stages]
    return [{x for x in there if x.startswith("0/0/") and x.endswith("]")} for there in names]


def test_a_scan_over_what_is_no_parameter_stays_whole() -> None:
    plan, _, state, batch = scanned_programs()

    def rounds(state: Any, x: Any, turns: Any) -> Any:
        out = scanned_net(state, x)
        return jax.lax.scan(lambda h, turn: (jnp.tanh(h @ turn), None), out, turns)[0]

    turns = np.random.default_rng(3).normal(size=(3, 6, 6))
    evaluation = mw.parallelize(rounds, method=mw.Follow(plan))
    followed = evaluation.plan(state, batch["x"], turns)
    assert "2" in {x.name for k in followed.stages[1].layers for x in k.arguments}
    expected = quick_jit(rounds)(jax.tree.map(host, state), batch["x"], turns)
    assert_same(evaluation(state, batch["x"], turns), expected)


SCANNED: dict[str, dict[str, Any]] = {
    "llama-tiny": {},
    # Not even: between steps the stacks are spread over all devices.
    "gpt-tiny": {"num_layers": 3, "remat": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCANNED)
def test_a_model_under_scan_is_evaluated_on_its_stages(name: str) -> None:
    changes = {"seq_len": 8, "scan_layers": True, **SCANNED[name]}
    step, args = model(name, CLIPPED, 8, **changes)
    staged, state, batch = trained(step, args)
    config: Any = model_config(name, dtype="float64", param_dtype="float64", **changes)
    net: Any = Llama(config) if isinstance(config, LlamaConfig) else Gpt(config)

    def evaluate(state: Any, batch: Any) -> Any:
        logits = net.apply({"params": state[0]}, batch["x"])
        return {"loss": mean_cross_entropy(logits, batch["y"]), "logits": logits}

    evaluation = mw.parallelize(evaluate, method=mw.Follow(staged))
    held = stage_layers(staged.plan(state, batch))
    assert all(held)
    assert stage_layers(evaluation.plan(state, batch)) == held
    expected = quick_jit(evaluate)(jax.tree.map(host, state), batch)
    assert_same(evaluation(state, batch), expected)


@pytest.mark.slow
def test_a_plan_from_a_file_is_followed() -> None:
    step, args = gpt_step(CLIPPED, num_layers=1)
    staged, state, batch = trained(step, args)
    read = Plan.from_json(staged.plan(*args).to_json())
    evaluation = mw.parallelize(evaluate_gpt, method=mw.Follow(read))
    found = evaluation(state, batch)["loss"]
    assert_same(found, quick_jit(evaluate_gpt)(host_state(state), batch)["loss"])


def test_what_cannot_be_followed_is_refused() -> None:
    step, (state, batch) = gpt_step(CLIPPED, num_layers=1)
    unplanned = mw.parallelize(step, method=mw.Auto(stages=2, schedule="1f1b"), cluster=CLUSTER)
    with pytest.raises(PlanError, match="has no plan yet"):
        mw.parallelize(evaluate_gpt, method=mw.Follow(unplanned)).plan(state, batch)
    plan = gpt_programs()[0].plan(state, batch)
    follow = mw.Follow(plan)
    with pytest.raises(PlanError, match="num_microbatches is not supported .* smaller batches"):
        mw.parallelize(evaluate_gpt, method=follow, num_microbatches=2).plan(state, batch)
    with pytest.raises(PlanError, match="no argument of this step follows one of the other: 0"):
        mw.parallelize(lambda v, b: jnp.sum(v), method=follow).plan(batch["x"][:3], {})
    kept = mw.parallelize(
        step,
        method=mw.Auto(stages=2, schedule="1f1b"),
        cluster=CLUSTER,
        num_microbatches=2,
        donate_argnums=(),
    )
    kept.plan(state, batch)
    with pytest.raises(PlanError) as caught:
        mw.parallelize(evaluate_gpt, method=mw.Follow(kept)).plan(state, batch)
    assert str(caught.value) == (
        "the stages of the step that is followed keep no state, since it donates none "
        "(donate_argnums=()): give it donate_argnums='auto', or the arguments that it returns anew"
    )
    with pytest.raises(InfeasibleError, match="stage 0 of the step that is followed: .* smaller"):
        mw.parallelize(evaluate_gpt, method=follow, memory_bytes=10_000).plan(state, batch)
    evaluation = mw.parallelize(evaluate_gpt, method=follow)
    with pytest.raises(PlanError, match="has a timeline of meshes"):
        evaluation.measured(state, batch)


def test_parameters_of_other_stages_on_the_same_devices_count() -> None:
    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float64)] * 4
    rows = jax.ShapeDtypeStruct((32, 64), jnp.float64)

    def forward(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    def step(weights: Any, x: Any) -> Any:
        loss, grads = mw.value_and_grad(lambda w: jnp.mean(forward(w, x) ** 2))(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss

    method = mw.Auto(stages=4, schedule="interleaved-1f1b")
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    staged = mw.parallelize(step, method=method, cluster=cluster, num_microbatches=8)
    plan: Any = staged.plan(weights, rows)
    assert plan.num_meshes < len(plan.stages)
    followed: Any = mw.parallelize(forward, method=mw.Follow(plan)).plan(weights, rows)
    assert followed.num_meshes < len(followed.stages)
    for mesh, peak in enumerate(followed.mesh_peak_bytes):
        pairs = zip(followed.mesh_of_stage, followed.stages, strict=True)
        on_mesh = [stage for m, stage in pairs if m == mesh]
        trained = [s for s in plan.stages if s.first_device == on_mesh[0].first_device]
        state = sum(8 * prod(x.shape) for s in trained for k in s.layers for x in k.arguments)
        held = sum(stage.resident_bytes for stage in on_mesh)
        # Split over at most the devices of the mesh; beside whole weights there are the rows.
        assert state / on_mesh[0].num_devices <= held
        assert peak == held + max(stage.temporary_bytes for stage in on_mesh)
    worst = followed.peak_bytes
    few: Any = mw.parallelize(forward, method=mw.Follow(plan), memory_bytes=worst)
    assert few.plan(weights, rows).peak_bytes <= worst
    none = mw.parallelize(forward, method=mw.Follow(plan), memory_bytes=worst // 2)
    with pytest.raises(InfeasibleError):
        none.plan(weights, rows)
