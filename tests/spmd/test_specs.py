"""The plan as PartitionSpecs, given to plain `jax.jit`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshwise as mw
from doubles.pipelines import pipeline
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import PlanError
from meshwise.graph.layout import parse_layout
from meshwise.plan.stage import Stage
from oracle.compare import assert_same_x64
from oracle.gpt_problems import Case, gpt_problem
from oracle.problem import quick_jit, reference, run

WIDTH, BATCH = 16, 32


def step(state: Any, batch: Any, *, scale: Any) -> Any:
    def loss_fn(params: Any) -> Any:
        h = jnp.tanh(batch["x"] @ params["in"] + params["bias"])
        return scale * jnp.mean((h @ params["out"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum, "extra": None}, loss


def spec(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def arguments() -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(0).normal
    params = {
        "in": jnp.asarray(draw(size=(WIDTH, 4 * WIDTH)), jnp.float32),
        "bias": jnp.asarray(draw(size=(4 * WIDTH,)), jnp.float32),
        "out": jnp.asarray(draw(size=(4 * WIDTH, WIDTH)), jnp.float32),
    }
    state = {"params": params, "momentum": jax.tree.map(jnp.ones_like, params), "extra": None}
    batch = {k: jnp.asarray(draw(size=(BATCH, WIDTH)), jnp.float32) for k in "xy"}
    return state, batch, jnp.float32(0.5)


# Columns, then rows, as Megatron does; the batch over the other axis.
PINS = {"0/*/in": P(None, "y"), "0/*/bias": P("y"), "0/*/out": P("y"), "1/*": P("x")}
GRID = mw.IntraOp(mesh_shape=(2, 4))
DOUBLE: dict[str, Any] = {"dtype": "float64", "param_dtype": "float64"}


def plan_with(method: Any, pins: Any = None) -> mw.Plan:
    state, batch, scale = arguments()
    planned = mw.parallelize(step, method=method, cluster=cpu_cluster(8), pins=pins)
    return planned.plan(state, batch, scale=scale)


@pytest.fixture(scope="module")
def pinned() -> mw.Plan:
    return plan_with(GRID, PINS)


@pytest.mark.parametrize(("method", "pins"), [(GRID, PINS), (mw.Zero3(), None), (GRID, None)])
def test_plain_jit_with_the_specs_gives_the_same_numbers(method: Any, pins: Any) -> None:
    plan = mw.Plan.from_json(plan_with(method, pins).to_json())
    state, batch, scale = arguments()
    specs = mw.partition_specs(plan, state, batch, scale=scale)
    assert len(specs) == 3
    types = (AxisType.Auto,) * len(plan.mesh.names)
    mesh = jax.make_mesh(plan.mesh.sizes, plan.mesh.names, axis_types=types)
    placed = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)

    def positional(state: Any, batch: Any, keywords: Any) -> Any:
        return step(state, batch, **keywords)

    parallel = jax.jit(positional, in_shardings=placed)
    given = jax.device_put((state, batch, {"scale": scale}), placed)
    wanted = quick_jit(step)(state, batch, scale=scale)
    found = parallel(*given)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    # Something is split, or the comparison would compare the same program.
    assert any(not leaf.is_fully_replicated for leaf in jax.tree.leaves(given))


@pytest.mark.usefixtures("x64", "quick_compile")
def test_a_gpt_under_plain_jit_with_the_specs_trains_as_on_one_device() -> None:
    """Framework authors take nothing but the specs: the model itself runs without Meshwise."""
    problem = gpt_problem(Case(form="scan", optimizer="sgd", plain=True, **DOUBLE))
    method = mw.Megatron(dp=2, tp=4)
    planned = mw.parallelize(problem.step, method=method, cluster=cpu_cluster(8))
    plan = planned.plan(problem.state, *problem.calls[0])
    specs = mw.partition_specs(plan, problem.state, *problem.calls[0])
    mesh = jax.make_mesh(
        plan.mesh.sizes, plan.mesh.names, axis_types=(AxisType.Auto,) * len(plan.mesh.names)
    )
    placed = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    parallel = jax.jit(problem.step, in_shardings=placed, out_shardings=(placed[0], None))
    found = run(lambda *args: parallel(*jax.device_put(args, placed)), problem)
    assert_same_x64(reference(problem), found)
    assert any(not leaf.is_fully_replicated for leaf in jax.tree.leaves(found.state.params))


def test_specs_stand_where_the_leaves_stood(pinned: mw.Plan) -> None:
    state, batch, scale = jax.eval_shape(arguments)
    state_specs, batch_specs, keywords = mw.partition_specs(pinned, state, batch, scale=scale)
    assert jax.tree.structure(state_specs) == jax.tree.structure(state)
    assert state_specs["params"] == state_specs["momentum"]
    assert state_specs["params"] == {"in": P(None, "y"), "bias": P("y"), "out": P("y")}
    assert state_specs["extra"] is None
    assert batch_specs == {"x": P("x"), "y": P("x")}
    assert keywords == {"scale": P()}


def test_without_keywords_there_is_a_tree_for_each_argument() -> None:
    def double(state: Any, batch: Any) -> Any:
        return state + batch.sum(0)

    planned = mw.parallelize(double, method=mw.DataParallel(), cluster=cpu_cluster(8))
    state, batch = jnp.zeros(4), jnp.zeros((16, 4))
    assert mw.partition_specs(planned.plan(state, batch), state, batch) == (P(), P("x"))


def test_arrays_of_other_shapes_are_refused(pinned: mw.Plan) -> None:
    state, batch, scale = jax.eval_shape(arguments)
    other = batch | {"x": jax.ShapeDtypeStruct((BATCH, 8), jnp.float32)}
    with pytest.raises(
        PlanError,
        match=r"leaf 6 \(1/x\) has shape \[32, 8\], the plan is for 1/x of shape \[32, 16\]; "
        "pass what the plan was made for, static arguments left out, or plan again",
    ):
        mw.partition_specs(pinned, state, other, scale=scale)


def test_another_number_of_leaves_is_refused(pinned: mw.Plan) -> None:
    state, batch, scale = jax.eval_shape(arguments)
    with pytest.raises(
        PlanError, match="have 8 leaves, the plan is for 9: scale is missing; pass what"
    ):
        mw.partition_specs(pinned, state, batch)
    with pytest.raises(
        PlanError, match="have 10 leaves, the plan is for 9: train is too much; pass what"
    ):
        mw.partition_specs(pinned, state, batch, scale=scale, train=True)


def test_leaves_of_a_pipeline_lie_as_on_the_stage_that_keeps_them() -> None:
    plan = pipeline()
    there = {x.name: x for stage in plan.stages for x in stage.arguments}
    state = {name.removeprefix("0/"): spec(x.shape) for name, x in there.items()}
    found, rows = mw.partition_specs(plan, state, {"x": spec((32, 8))})
    assert rows == {"x": P()}
    assert found["params/block_1/mlp/up/kernel"] == P(None, ("x", "y"))
    assert found["params/block_0/embedding/table"] == P("y")
    assert found["params/block_1/norm/scale"] == P()
    with pytest.raises(PlanError, match=r"mlp/up/bias has shape \[3\], the plan is for \[256\]"):
        mw.partition_specs(plan, state | {"params/block_1/mlp/up/bias": spec((3,))}, {})
    with pytest.raises(PlanError, match=r"none of the arguments \(0/w\) is kept by a stage"):
        mw.partition_specs(plan, {"w": spec((3,))})


def stacked(*layouts: str) -> mw.Plan:
    """A pipeline of two stages; each keeps layers of one stack."""
    plan = pipeline(layers_a_stage=1)
    stages: list[Stage] = []
    for k, (stage, layout) in enumerate(zip(plan.stages, layouts, strict=True)):
        first = stage.layers[0].arguments[0]
        kept = dataclasses.replace(
            first, name=f"0/w[{k}]", shape=(8, 16), layout=parse_layout(layout)
        )
        layer = dataclasses.replace(stage.layers[0], arguments=(kept,))
        stages.append(dataclasses.replace(stage, layers=(layer,)))
    return dataclasses.replace(plan, stages=tuple(stages))


def test_a_stack_of_layers_is_split_as_its_layers() -> None:
    plan = stacked("R S0", "R S0")
    for shape, wanted in (((2, 8, 16), P(None, None, "x")), ((8, 2, 16), P(None, None, "x"))):
        assert mw.partition_specs(plan, {"w": spec(shape)}) == ({"w": wanted},)
    with pytest.raises(PlanError, match=r"has shape \[3, 8, 16\], the plan is for 2 layers"):
        mw.partition_specs(plan, {"w": spec((3, 8, 16))})
    with pytest.raises(PlanError, match="the layers of 0/w lie in different ways"):
        mw.partition_specs(stacked("R S0", "S0 R"), {"w": spec((2, 8, 16))})


def test_shardings_place_the_arguments_on_the_mesh_of_the_plan() -> None:
    def step(weights: Any, rows: Any) -> Any:
        return weights - (rows @ weights).mean(), rows.sum()

    given = jnp.ones((8, 4)), jnp.ones((16, 8))
    plan = mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(8)).plan(*given)
    assert plan.mesh.shape == dict(mw.jax_mesh(plan).shape)
    assert plan.mesh.axis_names == mw.jax_mesh(plan).axis_names
    weights, rows = jax.device_put(given, mw.shardings(plan, *given))
    assert weights.sharding.is_fully_replicated
    assert {shard.data.shape for shard in rows.addressable_shards} == {(2, 8)}
    with pytest.raises(PlanError, match="the plan is for 8 devices, and there are 4"):
        mw.jax_mesh(plan, jax.devices()[:4])
