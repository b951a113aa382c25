"""Constraints of a step's own: pins on a mesh of their shape, else dropped with a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import PlanWarning
from meshwise.plan.counts.walk import visits
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.constraints import constraints_in
from meshwise.trace.step import StepSignature, open_step

pytestmark = [
    pytest.mark.usefixtures("quick_compile"),
    pytest.mark.filterwarnings("ignore:.*run whole on every device"),
]

CLUSTER = cpu_cluster(4)
GRID = mw.IntraOp((2, 2))
FREE = P.UNCONSTRAINED
DRAW = np.random.default_rng(0).normal
STATE = {name: np.asarray(DRAW(size=(8, 8)), np.float32) for name in ("first", "second")}
X = np.asarray(DRAW(size=(8, 8)), np.float32)
Step = Callable[[Any, Any], Any]


def mesh(**sizes: int) -> Mesh:
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def step_with(constrain: Callable[[Any], Any]) -> Step:
    """Two layers; the activation between them goes through a loop that constrains it."""

    def step(state: Any, batch: Any) -> Any:
        def loss(state: Any) -> Any:
            def body(hidden: Any, _: Any) -> Any:
                return constrain(jnp.tanh(hidden @ state["first"])), None

            hidden, _ = jax.lax.scan(body, constrain(batch @ state["first"]), None, length=2)
            return jnp.mean((hidden @ state["second"]) ** 2)

        value, grads = mw.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

    return step


def to(sharding: Any) -> Step:
    return step_with(lambda x: jax.lax.with_sharding_constraint(x, sharding))


def layouts(parallel: Any) -> set[str]:
    """How the results of all constraints lie."""
    planned = parallel._plan(*parallel._taken_apart((STATE, X), {}))
    return {
        str(visit.decision.results[0])
        for visit in visits(planned.traced.graph, planned.plan.decision)
        if visit.operator.kind == "sharding_constraint"
    }


def assert_numbers(parallel: Any, step: Step) -> None:
    want = jax.jit(step)(STATE, X)
    for a, b in zip(jax.tree.leaves(parallel(STATE, X)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_microbatches", [1, 2])
@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        (P("data", "model"), "S0 S1"),
        (P("model"), "S1 R"),
        (P(None, ("data", "model")), "R S01"),
        (P(), "R R"),
    ],
)
def test_on_a_mesh_of_its_shape_it_is_a_pin(spec: P, layout: str, num_microbatches: int) -> None:
    step = to(NamedSharding(mesh(data=2, model=2), spec))
    parallel = mw.parallelize(step, method=GRID, cluster=CLUSTER, num_microbatches=num_microbatches)
    assert layouts(parallel) == {layout}
    assert not any("not kept" in text for text in parallel.plans[0].warnings)
    assert_numbers(parallel, step)


def test_axes_of_size_1_do_not_matter() -> None:
    step = to(NamedSharding(mesh(replica=1, data=4), P(None, ("replica", "data"))))
    parallel = mw.parallelize(step, method=mw.IntraOp((4,)), cluster=CLUSTER)
    assert layouts(parallel) == {"R S0"}


def test_a_dim_that_is_free_is_planned() -> None:
    """The plan takes the faster of the layouts that the constraint leaves free."""

    def planned(first: object) -> Any:
        where = NamedSharding(mesh(data=4), P(first, None))
        return mw.parallelize(to(where), method=mw.IntraOp((4,)), cluster=CLUSTER)

    seconds = [planned(first).plan(STATE, X).step_time_s for first in (FREE, None, "data")]
    assert seconds[0] == pytest.approx(min(seconds[1:]), rel=1e-9)
    assert seconds[1] != pytest.approx(seconds[2], rel=1e-3)
    assert all(layout.endswith(" R") for layout in layouts(planned(FREE)))


def test_specs_of_the_mesh_that_is_set() -> None:
    step = step_with(lambda x: jax.lax.with_sharding_constraint(x, P(None, "data")))
    with jax.set_mesh(mesh(data=2, model=2)):
        parallel = mw.parallelize(step, method=GRID, cluster=CLUSTER)
        assert layouts(parallel) == {"R S0"}
        assert_numbers(parallel, step)


@pytest.mark.parametrize("key", ["in_shardings", "out_shardings"])
def test_what_an_inner_jit_asks_for(key: str) -> None:
    asked = NamedSharding(mesh(data=2, model=2), P("model"))
    step = step_with(jax.jit(lambda x: 2 * x, **{key: asked}))
    parallel = mw.parallelize(step, method=GRID, cluster=CLUSTER)
    assert layouts(parallel) == {"S1 R"}
    assert_numbers(parallel, step)
    with pytest.warns(PlanWarning, match="each stage has a mesh of its own"):
        mw.parallelize(
            step, method=mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2, cluster=CLUSTER
        ).plan(STATE, X)


def test_an_inner_jit_beside_attention() -> None:
    """Attention is found after inner calls were taken apart; what they ask for stays."""
    asked = NamedSharding(mesh(data=2, model=2), P("model"))

    def evaluate(state: Any, batch: Any) -> Any:
        hidden = jax.jit(lambda x: 2 * x, out_shardings=asked)(batch @ state["first"])
        heads = hidden.reshape(2, 4, 2, 4)
        return jnp.sum(jax.nn.dot_product_attention(heads, heads, heads))

    opened = open_step(
        evaluate, (STATE, X), {}, StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums=())
    )
    attended = with_attention(opened)
    assert attended is not None
    assert [c.dims for c in constraints_in(attended.closed.jaxpr)] == [(("model",),)]


def test_stages_with_constraints_on_results() -> None:
    asked = NamedSharding(mesh(data=2, model=2), P())

    def step(state: Any, batch: Any) -> Any:
        return jax.lax.with_sharding_constraint(to(asked)(state, batch), asked)

    parallel = mw.parallelize(
        step, method=mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2, cluster=CLUSTER
    )
    with pytest.warns(PlanWarning, match="each stage has a mesh of its own"):
        assert_numbers(parallel, step)


def test_stages_with_constraints_in_a_loop_of_what_joins_them() -> None:
    asked = NamedSharding(mesh(data=2, model=2), P())

    def step(state: Any, batch: Any) -> Any:
        state, value = to(asked)(state, batch)

        def halved(x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x / 2, asked)

        value = jax.lax.fori_loop(0, 2, lambda _, x: halved(x), value)
        return state, jax.lax.cond(value > 1, halved, jax.jit(halved, out_shardings=asked), value)

    parallel = mw.parallelize(
        step, method=mw.Auto(stages=2, schedule="1f1b"), num_microbatches=2, cluster=CLUSTER
    )
    with pytest.warns(PlanWarning, match="each stage has a mesh of its own"):
        assert_numbers(parallel, step)


def test_a_step_that_follows_keeps_it_too() -> None:
    asked = NamedSharding(mesh(data=2, model=2), P("model"))
    train = mw.parallelize(to(asked), method=GRID, cluster=CLUSTER)
    train.plan(STATE, X)

    def evaluate(state: Any, batch: Any) -> Any:
        return jnp.mean(jax.lax.with_sharding_constraint(batch @ state["first"], asked))

    step = mw.parallelize(evaluate, method=mw.Follow(train))
    assert layouts(step) == {"S1 R"}
    np.testing.assert_allclose(step(STATE, X), jax.jit(evaluate)(STATE, X), rtol=1e-5)


def test_stages_that_follow_say_that_they_drop_it() -> None:
    asked = NamedSharding(mesh(data=4), P("data"))
    method = mw.Auto(stages=2, schedule="1f1b")
    train = mw.parallelize(step_with(lambda x: x), method=method, num_microbatches=2)
    state, _ = train(STATE, X)

    def evaluate(state: Any, batch: Any) -> Any:
        hidden = jax.lax.with_sharding_constraint(batch @ state["first"], asked)
        return jnp.mean(hidden @ state["second"])

    follows = mw.parallelize(evaluate, method=mw.Follow(train))
    with pytest.warns(PlanWarning, match="each stage has a mesh of its own"):
        follows(state, X)


def test_what_reshard_asks_for() -> None:
    step = step_with(lambda x: jax.sharding.reshard(x, P(None, "data")))
    kinds = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    # A loop keeps the type of what it carries.
    with jax.set_mesh(kinds):
        parallel = mw.parallelize(step, method=mw.IntraOp((4,)), cluster=CLUSTER)
        assert "R S0" in layouts(parallel)
        assert_numbers(parallel, step)


@pytest.mark.parametrize(
    ("sharding", "options", "text"),
    [
        (
            lambda: NamedSharding(mesh(data=4), P("data")),
            {"method": GRID},
            r"the constraint at test_constraints.py:\d+.* is not kept: its mesh is {'data': 4}, "
            r"and that of the plan is {'x': 2, 'y': 2}; ask for its shape, "
            r"method=mw.IntraOp\(\(4,\)\)",
        ),
        (
            lambda: NamedSharding(mesh(data=4), P("data")),
            {"method": mw.DataParallel()},
            r"and the method decides all layouts; use method=mw.IntraOp\(\(4,\)\)",
        ),
        (
            lambda: NamedSharding(mesh(data=4), P("data")),
            {"method": mw.Auto(stages=2, schedule="1f1b"), "num_microbatches": 2},
            r"and each stage has a mesh of its own; take it away, or plan without stages",
        ),
        (
            lambda: NamedSharding(mesh(data=2, model=2), P(("model", "data"))),
            {"method": GRID},
            "and the layout does not divide the array, or takes axes out of their order; constrain",
        ),
        (
            lambda: jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0]),
            {"method": GRID},
            "is not kept: its mesh is unknown, .*; name one, by jax.sharding.NamedSharding",
        ),
    ],
)
def test_it_is_dropped_with_a_warning(sharding: Callable[[], Any], options: Any, text: str) -> None:
    step = to(sharding())
    parallel = mw.parallelize(step, cluster=CLUSTER, **options)
    with pytest.warns(PlanWarning, match=text):
        parallel.plan(STATE, X)
    if isinstance(sharding(), NamedSharding):
        assert_numbers(parallel, step)
