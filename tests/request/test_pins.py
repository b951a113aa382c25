"""Pins: arguments by path, activations by name, free dims, forbidden axes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import PinError
from meshwise.graph.layout import parse_layout, used_axes
from meshwise.plan.counts.walk import visits
from meshwise.request.pins import matches

CLUSTER = cpu_cluster(4)
GRID = mw.IntraOp(mesh_shape=(2, 2))
WIDTH, ROWS = 8, 16
FREE = P.UNCONSTRAINED


def arguments() -> tuple[Any, Any]:
    draw = np.random.default_rng(0).normal
    state = {"layers": [{"kernel": draw(size=(WIDTH, WIDTH))} for _ in range(2)]}
    return jax.tree.map(jnp.float32, state), jnp.float32(draw(size=(ROWS, WIDTH)))


def step(state: Any, batch: Any) -> Any:
    """Two layers, the second inside a scan; both name their activation."""

    def loss(state: Any) -> Any:
        first, second = state["layers"]
        h = checkpoint_name(jnp.tanh(batch @ first["kernel"]), "first_hidden")

        def body(h: Any, _: Any) -> Any:
            return checkpoint_name(jnp.tanh(h @ second["kernel"]), "looped_hidden"), None

        return jnp.mean(jax.lax.scan(body, h, None, length=2)[0] ** 2)

    value, grads = mw.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value


def planned(pins: Any, **options: Any) -> Any:
    return mw.parallelize(step, method=GRID, cluster=CLUSTER, pins=pins, **options)


def named_layouts(parallel: Any, *args: Any) -> dict[str, set[str]]:
    """Layouts of the results of naming operators, by name."""
    planned = parallel._plan(*parallel._taken_apart(args, {}))
    traced, plan = planned.traced, planned.plan
    found: dict[str, set[str]] = {}
    for visit in visits(traced.graph, plan.decision):
        if visit.operator.kind == "name":
            name = visit.graph.tensors[visit.operator.outputs[0]].name
            found.setdefault(name, set()).add(str(visit.decision.results[0]))
    return found


@pytest.mark.parametrize("b", [1, 2])
def test_activations_lie_as_pinned_also_in_loops_and_mean_the_same(b: int) -> None:
    pins = {
        "activation:first_hidden": P("y", "x"),
        "activation:looped_*": P(None, "y"),
        "0/**/kernel": mw.Pin(forbid="x"),
    }
    parallel = planned(pins, num_microbatches=b)
    state, batch = arguments()
    free = named_layouts(planned(None, num_microbatches=b), state, batch)
    found = named_layouts(parallel, state, batch)
    assert found == {"first_hidden": {"S1 S0"}, "looped_hidden": {"R S1"}}
    assert free != found, "the test needs pins that change something"
    for layout in parallel.plan(state, batch).decision.inputs[:2]:
        assert 0 not in used_axes(layout)
    wanted = jax.jit(step)(state, batch)
    got = parallel(state, batch)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), got, wanted)


def test_the_optimiser_fills_what_a_spec_leaves_free() -> None:
    args = jax.eval_shape(arguments)
    layouts = {}
    for entry in (None, "x", FREE):
        plan = planned({"0/layers/0/kernel": P(entry, "y")}).plan(*args)
        layouts[entry] = plan.decision.inputs[0], plan.step_time_s
    assert layouts[None][0] == parse_layout("R S1")
    assert layouts["x"][0] == parse_layout("S0 S1")
    assert layouts[FREE][0] in (layouts[None][0], layouts["x"][0])
    assert layouts[FREE][1] == min(layouts[None][1], layouts["x"][1])


def test_several_pins_of_one_tensor_are_all_kept() -> None:
    pins = {"0/**": mw.Pin(forbid=("x",)), "0/layers/0/*": P(FREE, None)}
    plan = planned(pins).plan(*jax.eval_shape(arguments))
    first, second = plan.decision.inputs[:2]
    assert str(first) in ("S1 R", "R R")
    assert 0 not in used_axes(second)


def test_a_pin_overrides_a_method_only_where_it_must() -> None:
    args = jax.eval_shape(arguments)
    pins = {"0/**": mw.Pin(forbid="y")}
    mesh = mw.parallelize(step, method=mw.Megatron(dp=2, tp=2), cluster=CLUSTER, pins=pins)
    assert all(1 not in used_axes(w) for w in mesh.plan(*args).decision.inputs[:2])
    with pytest.raises(PinError, match=r"axis 'y', the mesh has \['x'\]; use one of these"):
        mw.parallelize(step, method=mw.Zero3(), cluster=CLUSTER, pins=pins).plan(*args)


def test_meshes_without_an_axis_that_a_pin_names_are_not_tried() -> None:
    args = jax.eval_shape(arguments)
    plan = mw.parallelize(step, cluster=CLUSTER, pins={"0/layers/0/kernel": P("y")}).plan(*args)
    assert plan.mesh.sizes == (2, 2)
    assert "on this mesh" in plan.space


def test_axes_of_an_argument_may_stand_in_any_order() -> None:
    plan = planned({"0/layers/0/kernel": P(("y", "x"))}).plan(*jax.eval_shape(arguments))
    assert plan.decision.inputs[0] == parse_layout("S10 R")


def test_names_of_activations_are_no_part_of_the_work() -> None:
    def other(state: Any, batch: Any) -> Any:
        h = checkpoint_name(batch @ state["w"], "another")
        return state, jnp.sum(h)

    def same(state: Any, batch: Any) -> Any:
        return state, jnp.sum(checkpoint_name(batch @ state["w"], "name"))

    args = {"w": jnp.ones((WIDTH, WIDTH))}, jnp.ones((ROWS, WIDTH))
    plans = [mw.parallelize(f, method=GRID, cluster=CLUSTER).plan(*args) for f in (other, same)]
    assert plans[0].fingerprint == plans[1].fingerprint


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("0/params/**/kernel", "0/params/kernel", True),
        ("0/params/**/kernel", "0/params/a/b/kernel", True),
        ("**/kernel", "0/params/a/kernel", True),
        ("0/**", "0", True),
        ("0/*", "0/a/b", False),
        ("0/h_*/w", "0/h_12/w", True),
        ("0/[ab]", "0/b", True),
        ("0", "0/w", False),
        ("*/w", "0/W", False),
        # Keys as Python writes them, and as a plan writes a member of a stack.
        ("0/w[1]", "0/w/1", True),
        ("0['w'][1]", "0/w/1", True),
        ("0/w[1]", "0/w[1]", True),
        ("0/w[1]", "0/w[2]", False),
    ],
)
def test_patterns(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) is fits


GRID_TEXT = "{'x': 2, 'y': 2}"


@pytest.mark.parametrize(
    ("pins", "text"),
    [
        (
            {"0/layer/0/kernel": P("x")},
            "pin '0/layer/0/kernel' names no argument; the nearest are 0/layers/0/kernel, "
            "0/layers/1/kernel, 1",
        ),
        (
            {"activation:frist_hidden": P("x")},
            "pin 'activation:frist_hidden' names no activation; the nearest are "
            "activation:first_hidden, activation:looped_hidden",
        ),
        ({"1": P("xx")}, "pin '1' names axis 'xx', the mesh has ['x', 'y']; did you mean 'x'?"),
        (
            {"1": mw.Pin(forbid=("data",))},
            "pin '1' names axis 'data', the mesh has ['x', 'y']; use one of these",
        ),
        (
            {"1": P("x", "x")},
            "pin '1': P('x', 'x') uses axis 'x' twice; an axis splits at most one dim "
            "of a tensor, and once",
        ),
        (
            {"1": mw.Pin(P("x"), forbid="x")},
            "pin '1': P('x') uses axis 'x', which the same pin forbids; take it out of one of them",
        ),
        (
            {"1": P("x", None, "y")},
            "pin '1': P('x', None, 'y') has 3 dims, but 1 has shape [16, 8], 2 dims; "
            "give at most so many entries, or a pattern that does not match it",
        ),
        (
            {"activation:*": P("x", None, "y")},
            "pin 'activation:*': P('x', None, 'y') has 3 dims, but "
            "activation:first_hidden has shape [16, 8], 2 dims; give at most so many entries, or "
            "a pattern that does not match it",
        ),
        (
            {"1": P("x"), "**": P("y")},
            "pin '1': P('x') contradicts '**': P('y') at 1 of shape "
            "[16, 8]; let only one of the patterns match it, or make them agree",
        ),
        (
            {"1": P("x"), "*": mw.Pin(forbid="x")},
            "pin '*': Pin(forbid=('x',)) contradicts '1': P('x') at 1 of shape "
            "[16, 8]; let only one of the patterns match it, or make them agree",
        ),
        (
            {"activation:first_hidden": P(("y", "x"))},
            "pin 'activation:first_hidden': P(('y', 'x')) splits a dim of an "
            "activation over axes out of the order of the mesh; write ('x', 'y')",
        ),
    ],
)
def test_wrong_pins_are_refused(pins: Any, text: str) -> None:
    with pytest.raises(PinError) as caught:
        planned(pins).plan(*jax.eval_shape(arguments))
    assert str(caught.value) == text


def test_a_pin_that_does_not_divide() -> None:
    def same(state: Any, batch: Any) -> Any:
        return state, jnp.sum(checkpoint_name(batch @ state, "odd"))

    for pattern, where in (("0", "0"), ("activation:odd", "activation:odd")):
        pins = {pattern: P(None, ("x", "y"))}
        parallel = mw.parallelize(same, method=GRID, cluster=CLUSTER, pins=pins)
        with pytest.raises(PinError) as caught:
            parallel.plan(jnp.ones((4, 6)), jnp.ones((6, 4)))
        assert f"does not divide {where} of shape" in str(caught.value)
        assert f"dim 1 of size 6 in 4 parts on the mesh {GRID_TEXT}" in str(caught.value)


def test_meshes_on_which_a_pin_does_not_divide_are_not_tried() -> None:
    def same(state: Any, batch: Any) -> Any:
        return state, jnp.sum(batch @ state)

    args = jnp.ones((4, 10)), jnp.ones((8, 4))
    for method in (mw.Auto(), mw.IntraOp(objective="alpa")):
        parallel = mw.parallelize(
            same, method=method, cluster=cpu_cluster(8), pins={"0": P(None, "x")}
        )
        plan = parallel.plan(*args)
        assert plan.mesh.sizes == (2, 4)
        assert plan.space is not None
        assert plan.space.endswith("on this mesh")
    odd = mw.parallelize(same, cluster=cpu_cluster(8), pins={"0": P(None, "x")})
    with pytest.raises(PinError) as caught:
        odd.plan(jnp.ones((4, 9)), jnp.ones((8, 4)))
    for sizes in ("{'x': 8}", "{'x': 2, 'y': 4}", "{'x': 4, 'y': 2}"):
        assert f"parts on the mesh {sizes}" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: mw.Pin("x"), "Pin(spec='x'): spec must be a jax.sharding.PartitionSpec"),  # type: ignore[arg-type]
        (lambda: mw.Pin(forbid=3), "Pin(forbid=3): forbid must be the name of a mesh axis"),  # type: ignore[arg-type]
        (lambda: planned({"1": "x"}), "pin '1' is 'x' (str); a pin is a jax.sharding.Partition"),
        (lambda: planned({"1": None}), "pin '1' is None (NoneType); a pin is a jax.sharding"),
    ],
)
def test_what_is_no_pin_is_refused_when_it_is_made(make: Any, text: str) -> None:
    with pytest.raises(PinError) as caught:
        make()
    assert str(caught.value).startswith(text)


# -- static arguments -----------------------------------------------------------------------------


def configured(config: str, state: Any, batch: Any, scale: Any = 1.0) -> Any:
    assert config == "config"
    return {"w": state["w"] - scale * (batch.T @ batch)}, jnp.sum(batch @ state["w"])


STATIC: dict[str, Any] = {"static_argnums": 0, "batch_argnums": 2}


def test_paths_count_static_arguments() -> None:
    state, batch = {"w": jnp.ones((WIDTH, WIDTH))}, jnp.ones((ROWS, WIDTH))
    options: Any = {"method": GRID, "cluster": CLUSTER, **STATIC}
    parallel = mw.parallelize(configured, pins={"1/w": P("y", "x"), "2": P("x")}, **options)
    plan = parallel.plan("config", state, batch)
    assert [a.name for a in plan.stages[0].arguments] == ["1/w", "2"]
    assert list(map(str, plan.decision.inputs)) == ["S1 S0", "S0 R"]
    assert plan.parameters == ((1, "state"), (2, "batch"))
    with pytest.raises(PinError, match=r"names no argument; the nearest are 1/w, 2"):
        mw.parallelize(configured, pins={"0/w": P("x")}, **options).plan("config", state, batch)


def create(key: Any) -> Any:
    return {"w": jax.random.normal(key, (WIDTH, WIDTH))}


@pytest.mark.parametrize("planned_before", [False, True])
def test_a_state_behind_a_static_argument_is_born_sharded(planned_before: bool) -> None:
    pins = {"1/w": P("y", "x")}
    parallel = mw.parallelize(configured, method=GRID, cluster=CLUSTER, pins=pins, **STATIC)
    key, batch = jax.random.key(0), jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    if planned_before:
        parallel.plan("config", jax.eval_shape(create, key), batch)
        state = parallel.init(create, key)
    else:
        state = parallel.init(create, key, "config", batch=batch)
    assert state["w"].sharding.spec == P("y", "x")
    np.testing.assert_array_equal(state["w"], create(key)["w"])


def test_init_names_what_is_no_array() -> None:
    parallel = mw.parallelize(configured, method=GRID, cluster=CLUSTER, **STATIC)
    with pytest.raises(mw.errors.TraceError, match="argument 0 of create of type str is not an"):
        parallel.init(create, "key", "config", jnp.ones((ROWS, WIDTH)))


def test_partition_specs_bind_keywords_as_the_plan_does() -> None:
    state, batch = {"w": jnp.ones((WIDTH, WIDTH))}, jnp.ones((ROWS, WIDTH))
    pins = {"1/w": P("y", "x"), "2": P("x")}
    parallel = mw.parallelize(configured, method=GRID, cluster=CLUSTER, pins=pins, **STATIC)
    plan = parallel.plan("config", scale=jnp.ones(()), batch=batch, state=state)
    plan = mw.Plan.from_json(plan.to_json())
    wanted = ({"w": P("y", "x")}, P("x"), P())
    scale = jnp.ones(())
    assert mw.partition_specs(plan, scale=scale, batch=batch, state=state) == wanted
    assert mw.partition_specs(plan, state, scale=scale, batch=batch) == wanted
    assert mw.partition_specs(plan, state, batch, scale) == wanted
    with pytest.raises(mw.errors.PlanError, match=r"leaf 0 \(1\) has shape"):
        mw.partition_specs(plan, batch, state, scale)
