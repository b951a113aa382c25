"""`parallelize` as users meet it: replayed plans, state born sharded, errors that teach."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import ClusterError, PinError, PlanError, TraceError
from oracle.compare import assert_same_x64, whole_from_shards
from oracle.gpt_problems import Case, gpt_problem
from oracle.parallel import CLUSTER, parallel_step, run_method
from oracle.problem import Problem, fresh, reference

ROWS, WIDTH = 16, 8
quick = pytest.mark.usefixtures("x64", "quick_steps")


def create_state(key: jax.Array) -> dict[str, Any]:
    first, second = jax.random.split(key)
    return {
        "w": jax.random.normal(first, (WIDTH, 2 * WIDTH)),
        "v": jax.random.normal(second, (2 * WIDTH, WIDTH)),
        "key": key,
        "count": jnp.zeros((), jnp.int32),
    }


def loss_of(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    return jnp.mean((jnp.tanh(batch["x"] @ params["w"]) @ params["v"] - batch["y"]) ** 2)


def train_step(state: dict[str, Any], batch: dict[str, Any]) -> tuple[dict[str, Any], jax.Array]:
    params = {"w": state["w"], "v": state["v"]}
    loss, grads = mw.value_and_grad(loss_of)(params, batch)
    new = {name: params[name] - 0.1 * grads[name] for name in params}
    return {**new, "key": jax.random.split(state["key"])[0], "count": state["count"] + 1}, loss


def make_batch(seed: int = 0, rows: int = ROWS) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, WIDTH)), "y": rng.normal(size=(rows, WIDTH))}


def make_problem() -> Problem:
    calls = tuple((make_batch(seed),) for seed in range(3))
    return Problem(step=train_step, state=create_state(jax.random.key(1)), calls=calls)


# -- replay ---------------------------------------------------------------------------------------


@quick
@pytest.mark.parametrize(("method", "b"), [(mw.IntraOp((2, 4)), 2), (mw.Megatron(4, 2), 1)])
def test_a_plan_read_back_from_json_gives_the_same_bits(method, b):
    problem = make_problem()
    found = parallel_step(problem, method, b).plan(problem.state, *problem.calls[0])
    read = mw.Plan.from_json(found.to_json())
    assert read == found
    first = run_method(problem, method, b)
    # The plan knows B; what the replaying step says of it does not count.
    again = run_method(problem, mw.Replay(read))
    results = [jax.tree.leaves((done.state, done.outs)) for done in (first, again)]
    for a, c in zip(*results, strict=True):
        assert whole_from_shards(a).tobytes() == whole_from_shards(c).tobytes()
    assert_same_x64(reference(problem), again)


@quick
def test_a_plan_of_a_gpt_survives_json():
    case = Case("scan", "sgd", False, "mean", False, "float64", "float64")
    problem = gpt_problem(case)
    plan = parallel_step(problem, mw.IntraOp((2, 4)), 2).plan(problem.state, *problem.calls[0])
    again = mw.Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert_same_x64(reference(problem), run_method(problem, mw.Replay(again)))


@quick
def test_a_plan_is_only_for_its_own_step():
    problem = make_problem()
    plan = parallel_step(problem, mw.DataParallel()).plan(problem.state, make_batch())
    step = parallel_step(problem, mw.Replay(plan))
    with pytest.raises(PlanError, match="another step or other shapes"):
        step.plan(problem.state, make_batch(rows=32))


@quick
def test_equal_inputs_give_equal_plans():
    problem = make_problem()
    texts = {
        parallel_step(problem, mw.IntraOp((2, 2, 2)), 2)
        .plan(problem.state, *problem.calls[0])
        .to_json()
        for _ in range(2)
    }
    assert len(texts) == 1


def test_planning_needs_shapes_only_and_any_cluster():
    state = jax.eval_shape(create_state, jax.random.key(0))
    batch = jax.eval_shape(make_batch)
    step = mw.parallelize(train_step, cluster=mw.Cluster.virtual("2x p3.16xlarge"))
    plan = step.plan(state, batch)
    assert plan.mesh.num_devices == 16
    assert "step time" in plan.explain()


# -- state born sharded ---------------------------------------------------------------------------


@quick
@pytest.mark.parametrize("specs_only", [False, True])
def test_the_state_is_born_where_the_plan_wants_it(specs_only):
    step = parallel_step(make_problem(), mw.Zero3())
    batch = make_batch()
    given = jax.eval_shape(lambda: batch) if specs_only else batch
    state = step.init(create_state, jax.random.key(1), given)
    want = create_state(jax.random.key(1))
    for name in ("w", "v", "count"):
        np.testing.assert_array_equal(whole_from_shards(state[name], name), want[name])
    assert jnp.all(jax.random.key_data(state["key"]) == jax.random.key_data(want["key"]))
    shard = state["w"].addressable_shards[0].data
    assert shard.size * 8 == state["w"].size
    places = jax.tree.map(lambda leaf: leaf.sharding, state)
    after, _ = step(state, batch)
    assert jax.tree.map(lambda leaf: leaf.sharding, after) == places


@quick
def test_init_after_a_plan_needs_no_batch():
    step = parallel_step(make_problem(), mw.Zero3())
    with pytest.raises(PlanError, match=r"step\.init\(create_state, key, batch\)"):
        step.init(create_state, jax.random.key(1))
    step.plan(jax.eval_shape(create_state, jax.random.key(1)), make_batch())
    state = step.init(create_state, jax.random.key(1))
    np.testing.assert_array_equal(state["w"], create_state(jax.random.key(1))["w"])


# -- pins -----------------------------------------------------------------------------------------


@quick
def test_pins_hold_and_mean_the_same():
    problem = make_problem()
    pins = {"0/w": PartitionSpec("y", "x"), "1/*": PartitionSpec()}
    step = parallel_step(problem, mw.IntraOp((2, 4)), pins=pins)
    state, _ = step(fresh(problem.state), *problem.calls[0])
    assert state["w"].sharding.spec == PartitionSpec("y", "x")
    got = run_method(problem, mw.IntraOp((2, 4)), pins=pins)
    assert_same_x64(reference(problem), got)


@pytest.mark.parametrize(
    ("pins", "match"),
    [
        ({"0/nothing": PartitionSpec("x")}, r"names no argument; the nearest are .*0/w"),
        ({"0/w": PartitionSpec("z")}, r"names axis 'z', the mesh has \['x', 'y'\]"),
        ({"0/count": PartitionSpec("x")}, r"has 1 dim, but 0/count has shape \[\], 0 dims"),
        ({"0/w": PartitionSpec(None, ("x", "y")), "0/*w": PartitionSpec("x")}, "contradicts"),
        ({"0/w": PartitionSpec(("x", "x"))}, "0/w"),
    ],
)
def test_bad_pins_are_refused(pins, match):
    step = parallel_step(make_problem(), mw.IntraOp((2, 4)), pins=pins)
    with pytest.raises(PinError, match=match):
        step.plan(create_state(jax.random.key(0)), make_batch())


def test_a_pin_that_does_not_divide_is_refused():
    step = mw.parallelize(
        lambda w, x: (w, x @ w),
        cluster=CLUSTER,
        method=mw.IntraOp((8,)),
        pins={"0": PartitionSpec("x")},
    )
    with pytest.raises(PinError, match=r"does not divide 0 of shape \[12, 4\]: dim 0"):
        step.plan(np.zeros((12, 4)), np.zeros((8, 12)))


# -- errors ---------------------------------------------------------------------------------------


def test_more_devices_than_there_are():
    step = mw.parallelize(train_step, cluster=cpu_cluster(16), method=mw.DataParallel())
    state = create_state(jax.random.key(0))
    assert step.plan(state, make_batch()).mesh.num_devices == 16
    with pytest.raises(ClusterError, match="needs 16 devices, this process sees 8"):
        step(state, make_batch())


def test_a_mesh_larger_than_the_cluster():
    step = mw.parallelize(train_step, cluster=CLUSTER, method=mw.IntraOp((4, 4)))
    with pytest.raises(ClusterError, match=r"\(4, 4\) needs 16 devices"):
        step.plan(create_state(jax.random.key(0)), make_batch())


@pytest.mark.parametrize("leaf", ["adam", object()])
def test_a_leaf_that_is_no_array(leaf):
    step = parallel_step(make_problem(), mw.DataParallel())
    state = {**create_state(jax.random.key(0)), "name": leaf}
    with pytest.raises(TraceError, match=rf"{type(leaf).__name__}.*static_argnums"):
        step(state, make_batch())


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: x @ w,
        lambda w, x: jnp.sum(x @ w).astype(jnp.complex64),
        lambda w, x: jnp.sum(x @ w).astype(jnp.int32),
    ],
)
def test_a_loss_that_is_no_real_scalar(loss):
    step = mw.parallelize(
        lambda w, x: (w - mw.grad(loss)(w, x), None), cluster=CLUSTER, method=mw.DataParallel()
    )
    with pytest.raises(TraceError, match="scalar"):
        step.plan(np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32))


def test_stats_tell_what_was_predicted_and_measured():
    step = parallel_step(make_problem(), mw.DataParallel())
    with pytest.raises(PlanError, match="no step has run"):
        step.stats()
    step(create_state(jax.random.key(0)), jax.tree.map(np.float32, make_batch()))
    stats = step.stats()
    assert stats["measured_peak_bytes"] > 0
    assert stats["predicted_peak_bytes"] > 0
