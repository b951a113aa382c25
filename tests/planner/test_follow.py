"""`Follow`: evaluation on the placement of training."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import PlanError

CLUSTER = cpu_cluster(8)
WIDTH, ROWS = 16, 32
NO_STEP: Any = 3
PINS = {"0/params/in": P(None, "y"), "0/params/out": P("y", None), "0/opt/trace/*": P("x", None)}


def error(params: Any, batch: Any) -> Any:
    return jnp.mean((jnp.tanh(batch["x"] @ params["in"]) @ params["out"] - batch["y"]) ** 2)


def train(state: Any, batch: Any) -> Any:
    loss, grads = mw.value_and_grad(error)(state["params"], batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["opt"]["trace"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "opt": {"trace": momentum}}, loss


def evaluate_state(state: Any, batch: Any) -> Any:
    return error(state["params"], batch)


def arguments(rows: int = ROWS) -> tuple[Any, Any]:
    draw = np.random.default_rng(0).normal
    shapes = {"in": (WIDTH, 4 * WIDTH), "out": (4 * WIDTH, WIDTH)}
    params = {name: jnp.float32(draw(size=shape)) for name, shape in shapes.items()}
    batch = {name: jnp.float32(draw(size=(rows, WIDTH))) for name in "xy"}
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "opt": {"trace": zeros}}, batch


def training(**options: Any) -> Any:
    asked = {"method": mw.IntraOp((2, 4)), "pins": PINS, "cluster": CLUSTER} | options
    return mw.parallelize(train, **asked)


def layouts(plan: mw.Plan) -> dict[str, str]:
    (stage,) = plan.stages
    names = [argument.name for argument in stage.arguments]
    return dict(zip(names, map(str, plan.decision.inputs), strict=True))


@pytest.mark.parametrize("b", [1, 2])
def test_evaluation_takes_the_state_where_training_left_it(b: int) -> None:
    step = training()
    state, batch = arguments()
    state, _ = step(state, batch)
    # Without a cluster: the mesh is that of training.
    evaluation = mw.parallelize(evaluate_state, method=mw.Follow(step), num_microbatches=b)
    plan = evaluation.plan(state, batch)
    assert layouts(plan) == layouts(step.plan(state, batch))
    assert plan.mesh == step.plan(state, batch).mesh
    assert (plan.method, plan.num_microbatches) == ("Follow()", b)
    placed = mw.partition_specs(plan, state, batch)[0]
    assert jax.tree.map(lambda leaf: leaf.sharding.spec, state) == placed
    found = evaluation(state, batch)
    np.testing.assert_allclose(found, jax.jit(evaluate_state)(state, batch), rtol=1e-5)


def test_a_part_of_the_state_follows_by_the_end_of_its_path() -> None:
    step = training()
    state, batch = arguments()
    wanted = layouts(step.plan(state, batch))
    evaluation = mw.parallelize(error, method=mw.Follow(step.plan(state, batch)))
    found = layouts(evaluation.plan(state["params"], batch))
    assert found == {
        "0/in": wanted["0/params/in"],
        "0/out": wanted["0/params/out"],
        "1/x": wanted["1/x"],
        "1/y": wanted["1/y"],
    }
    # The other tree of the same shapes lies differently, and its paths are longer.
    assert wanted["0/params/in"] != wanted["0/opt/trace/in"]


def test_what_training_does_not_have_is_filled_in_and_pins_win() -> None:
    step = training()
    state, batch = arguments()
    step.plan(state, batch)
    longer = arguments(2 * ROWS)[1]
    pins = {"0/params/in": P("y", None)}
    plan = mw.parallelize(evaluate_state, method=mw.Follow(step), pins=pins).plan(state, longer)
    found = layouts(plan)
    assert found["0/params/in"] == "S1 R"
    assert found["0/params/out"] == "S1 R"
    assert found["0/opt/trace/in"] == "S0 R"


def test_what_cannot_be_followed() -> None:
    step = training()
    state, batch = arguments()
    evaluation = mw.parallelize(evaluate_state, method=mw.Follow(step))
    with pytest.raises(PlanError, match="that step has no plan yet; call it, or step.plan"):
        evaluation.plan(state, batch)
    step.plan(state, batch)
    evaluation.plan(state, batch)
    with pytest.raises(PlanError) as caught:
        mw.parallelize(lambda v, b: jnp.sum(v), method=mw.Follow(step)).plan(batch["x"][:3], {})
    assert str(caught.value).startswith(
        "no argument of this step follows one of the other: 0 here, 0/"
    )
    two = mw.parallelize(
        lambda state, batch: (state, jnp.sum(batch @ state["a"]["w"] @ state["b"]["w"])),
        method=mw.IntraOp((8,)),
        cluster=CLUSTER,
        pins={"0/a/w": P("x"), "0/b/w": P()},
    )
    w = jnp.ones((WIDTH, WIDTH))
    follows = mw.Follow(two.plan({"a": {"w": w}, "b": {"w": w}}, batch["x"]))
    with pytest.raises(PlanError) as caught:
        mw.parallelize(lambda s, b: jnp.sum(b @ s["w"]), method=follows).plan({"w": w}, batch["x"])
    assert str(caught.value) == (
        "0/w of shape [16, 16] could follow 0/a/w or 0/b/w, which lie differently; pass it under "
        "the path that it has in the other step, or pin it"
    )
    with pytest.raises(PlanError) as caught:
        mw.Follow(NO_STEP)
    assert str(caught.value).startswith(
        "Follow takes a step made by parallelize, or its plan, got 3"
    )
