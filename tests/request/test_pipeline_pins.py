"""Pins of pipelines: read, honoured, or refused with those that contradict each other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import meshwise as mw
from meshwise.cli.plan import plan as plan_command
from meshwise.errors import InfeasibleError, PinError, PlanError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.intra.options import IntraOptions
from meshwise.plan.plan import Plan
from meshwise.planner.pinned_layers import PinnedCosts, PinnedSource
from meshwise.planner.pipeline import layers_of, plan_pipeline
from meshwise.request.pins import Pin
from meshwise.request.pipeline_pins import layout_value, read_pins, split_pin
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import StepSignature

pytestmark = pytest.mark.usefixtures("compiled_kernels", "no_buckets", "layers_known")

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")
MIDDLE = "0/1"


def make_step(num_layers: int) -> tuple[Any, Any, Any]:
    """A perceptron with names for its activations."""
    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * num_layers

    def step(weights: Any, batch: Any) -> Any:
        def loss_fn(weights: Any) -> Any:
            x = batch["x"]
            for w in weights:
                x = checkpoint_name(jnp.tanh(x @ w), "hidden")
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss

    rows = jax.ShapeDtypeStruct((32, 64), jnp.float32)
    return step, weights, {"x": rows, "y": rows}


def make_three() -> tuple[Any, Any, Any]:
    return make_step(3)


def layering(num_layers: int) -> Layering:
    step, state, batch = make_step(num_layers)
    return layers_of(step, (state, batch), {}, SIGNATURE, num_layers)[0]


def planned(pins: Any, report: Callable[[str], object] = lambda _: None, **changes: Any) -> Plan:
    step, state, batch = make_step(3)
    given = {
        "cluster": CLUSTER,
        "num_layers": 3,
        "num_microbatches": (4,),
        "remats": ("none",),
        "schedules": (ONE_F_ONE_B, EAGER),
    }
    request = PipelineRequest(**{**given, "pins": pins, **changes})
    return plan_pipeline(step, (state, batch), {}, SIGNATURE, request, report).plan


def ranges(plan: Plan) -> list[tuple[int, int]]:
    return [(s.first_layer, s.last_layer) for s in plan.stages]


@pytest.fixture(scope="module")
def pinned_stages() -> Plan:
    return planned(
        {"stages": "0-0,1-2", "submesh.0": "1x2", "mesh.1": "2x1", "remat.1": "selective"}
    )


def test_layers_submesh_mesh_and_remat_of_stages(pinned_stages: Plan) -> None:
    first, second = pinned_stages.stages
    assert ranges(pinned_stages) == [(0, 0), (1, 2)]
    assert first.submesh == (1, 2)
    assert second.mesh.sizes == (2,)
    assert second.remat == "selective"
    assert "pins stages=0-0,1-2, submesh.0=1x2, mesh.1=2x1, remat.1=selective" in (
        pinned_stages.space
    )


def test_pins_cost_what_they_take_away(pinned_stages: Plan) -> None:
    free = planned({"stages": 2}, remats=("none", "selective"))
    assert free.formula_s <= pinned_stages.formula_s * (1 + 1e-9)


def test_number_of_stages_microbatches_and_schedule() -> None:
    plan = planned({"stages": 2, "microbatches": 8, "schedule": "gpipe"}, num_microbatches=(4, 8))
    assert len(plan.stages) == 2
    assert plan.num_microbatches == 8
    assert plan.schedule == GPIPE.table_name


def test_a_stage_named_by_a_layer_and_a_mesh_that_is_not_tried_by_itself() -> None:
    plan = planned({"mesh@2": "4x1", "submesh": "1x4 on p3.8xlarge"})
    assert [s.mesh.sizes for s in plan.stages] == [(4,)]


def test_layouts_of_parameters_and_activations() -> None:
    plan = planned(
        {MIDDLE: P(None, "x"), "mesh": "2x2", "0/0": Pin(forbid="y"), "activation:*": P("x", "y")}
    )
    layouts = {x.name: x.layout for stage in plan.stages for x in stage.arguments}
    assert layouts[MIDDLE].dims == ((), (0,))
    assert all(1 not in axes for axes in layouts["0/0"].dims)


def test_a_layout_along_an_axis_that_smaller_meshes_do_not_have() -> None:
    plan = planned({MIDDLE: P("y", "x")})
    assert [s.mesh.sizes for s in plan.stages] == [(2, 2)]


def test_a_pinned_layer_is_no_longer_equal_to_others() -> None:
    layers = layering(6)
    free = PinnedSource(layers, {}).classes
    assert free == layers.classes == (0, 1, 1, 1, 1, 5)
    assert PinnedSource(layers, {"0/3": P("x")}).classes == (0, 1, 1, 3, 1, 5)
    assert PinnedSource(layers, {"0/1": P("x")}).classes == (0, 1, 2, 2, 2, 5)
    assert PinnedSource(layers, {"0/*": P("x")}).classes == free
    assert PinnedSource(layers, {"activation:hidden": P("x")}).classes == free


def test_where_a_layout_does_not_fit_a_mesh_only_its_layer_has_no_plan() -> None:
    layers = layering(3)
    pins = {"0/0": P("y", None)}
    costs = PinnedCosts(PinnedSource(layers, pins), IntraOptions(), pins)
    price = BytePrice()
    pair = Variant(mesh=CLUSTER.submesh(0, 1, 0, 2).kind.mesh((2,)), remat="none", price=price)
    runs = costs.runs(pair, 4)
    assert runs is not None
    assert np.isinf(runs.loop_s[0]).all()
    assert np.isfinite(runs.loop_s[1, 1:]).all()
    assert np.isfinite(runs.loop_s[2, 2])
    assert "the mesh has ['x']" in costs.refused[0]
    bounds = costs.bounds(pair.mesh, pair.remat, 4)
    assert bounds is not None
    assert (np.isfinite(bounds.loop_s) == np.isfinite(runs.loop_s)).all()
    some = np.isfinite(runs.loop_s)
    assert (bounds.resident_bytes[some] <= runs.resident_bytes[some]).all()
    grid = dataclasses.replace(pair, mesh=CLUSTER.submesh(0, 1).kind.mesh((2, 2)))
    on_grid = costs.runs(grid, 4)
    assert on_grid is not None
    assert np.isfinite(on_grid.loop_s[0]).all()


@pytest.mark.parametrize(
    ("pins", "named", "not_named"),
    [
        # Numbers.
        ((("stages", 2), ("stages", 3), ("remat", "none")), ("stages=2", "stages=3"), "remat"),
        ((("microbatches", 8),), ("microbatches=8", "num_microbatches=4"), "stages"),
        ((("schedule", "gpipe"), ("schedule", "1f1b")), ("gpipe", "1f1b"), "num_microbatches"),
        # Layers against the number.
        ((("stages", 3), ("stages", "0-0,1-2")), ("stages=3", "stages=0-0,1-2"), "num_micro"),
        ((("stages", "0-1"), ("stages", "1-2")), ("stages=0-1", "stages=1-2"), "num_micro"),
        # Four devices.
        (
            (("stages", 2), ("submesh.0", "1x4"), ("remat.0", "none")),
            ("stages=2", "submesh.0=1x4"),
            "remat",
        ),
        ((("submesh.0", "1x2"), ("mesh.0", "2x2")), ("submesh.0=1x2", "mesh.0=2x2"), "num_micro"),
        ((("remat@1", "full"), ("remat", "none")), ("remat@1=full", "remat=none"), "num_micro"),
        # One alone.
        (
            (("submesh.0", "1x3"), ("remat", "none")),
            ("there is no submesh 1x3", "1x1, 1x2, 1x4"),
            "remat",
        ),
        ((("mesh", "8"),), ("mesh=8", "there is no submesh of 8 devices"), "num_micro"),
        ((("submesh.0", "1x2 on h200"),), ("on h200",), "num_micro"),
        ((("stages", 4),), ("stages=4", "3 layers"), "num_micro"),
        # Layouts.
        (((MIDDLE, "P(x)"), (MIDDLE, "P(-, x)"), ("stages", 2)), ("P(x)", "P(-, x)"), "stages=2"),
    ],
)
def test_contradictions_name_a_smallest_set(
    pins: Any, named: tuple[str, ...], not_named: str
) -> None:
    with pytest.raises(PlanError) as caught:
        planned(pins)
    text = str(caught.value)
    assert all(name in text for name in named), text
    assert not_named not in text.partition("there are")[0], text


@pytest.mark.parametrize(
    ("kib", "named"),
    [
        pytest.param(45, ["stages=3"], marks=pytest.mark.slow),
        pytest.param(55, ["stages=3", "num_microbatches=4"], marks=pytest.mark.slow),
    ],
)
def test_pins_that_leave_too_little_memory_are_named(kib: int, named: list[str]) -> None:
    # 43 KiB as one stage on four devices; 69 as three stages, less with smaller micro-batches.
    pins = {"schedule": "1f1b", "stages": 3, "remat.0": "none"}
    with pytest.raises(PlanError) as caught:
        planned(pins, memory_bytes=kib * 1024)
    before, _, reason = str(caught.value).partition(":")
    assert re.findall(r"'(.*?)'", before) == named
    assert "no pipeline was found that fits into" in reason
    # With the memory that is named the pins can be kept.
    enough = int(re.findall(r"memory_bytes=(\d+)", reason)[0])
    assert planned(pins, memory_bytes=enough).peak_bytes <= enough
    # Without the pins there is a plan.
    assert planned({}, memory_bytes=kib * 1024).peak_bytes <= kib * 1024


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param(
            {"memory_bytes": 34 * 1024},
            "there is a pipeline with .*twice the hosts",
            marks=pytest.mark.slow,
        ),
        (
            {"memory_bytes": 55 * 1024, "num_stages": 3},
            "with .*32 micro-batches or with a number of stages of its own choice",
        ),
        (
            {"memory_bytes": 44 * 1024, "schedules": (GPIPE,)},
            "with .*schedule 1f1b or with twice",
        ),
    ],
)
def test_what_would_help_is_planned_before_it_is_named(changes: Any, told: str) -> None:
    with pytest.raises(InfeasibleError, match=told) as caught:
        planned({}, **changes)
    enough = int(re.findall(r"memory_bytes=(\d+)", str(caught.value))[0])
    assert planned({}, **changes | {"memory_bytes": enough}).peak_bytes <= enough


def test_a_state_that_does_not_fit_is_refused_before_tracing() -> None:
    said: list[str] = []
    told = "take 48 KiB, and the memory of all devices .* is 4 KiB"
    with pytest.raises(InfeasibleError, match=told):
        planned({}, memory_bytes=1024, offload=False, report=said.append)
    assert not said
    # What of it may stay in the memory of hosts shows once it is traced; the rest is too large.
    with pytest.raises(InfeasibleError, match=told):
        planned({}, memory_bytes=1024, report=said.append)
    assert not any("bounds" in text for text in said)


@pytest.mark.parametrize(("asked", "told"), [(4, "3 layers cannot be cut"), (9, "at most 3")])
def test_a_number_of_stages_that_cannot_be_is_refused_before_planning(
    asked: int, told: str
) -> None:
    said: list[str] = []
    with pytest.raises(InfeasibleError, match=told):
        planned({}, num_stages=asked, report=said.append)
    assert not any("bounds" in text or "would it fit" in text for text in said)


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        (1, "2 layers cannot be cut .*: ask for at most 2 stages$"),
        (3, r"6 layers cannot be cut .*: ask for at most 4 stages \(schedules with several stages"),
    ],
)
def test_the_number_of_stages_that_is_named_can_be_had(blocks: int, told: str) -> None:
    """Blocks repeat, but stages may lie inside of them; there are four devices."""

    def step(weights: Any, batch: Any) -> Any:
        def loss_fn(weights: Any) -> Any:
            x = batch
            for first, second in weights:
                x = x + jnp.tanh(x @ first) @ second
            return jnp.mean(x**2)

        loss, grads = mw.value_and_grad(loss_fn)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss

    spec = jax.ShapeDtypeStruct
    weights = [(spec((64, 256), jnp.float32), spec((256, 64), jnp.float32))] * blocks
    args = weights, spec((32, 64), jnp.float32)

    def planned_as(num_stages: int) -> Plan:
        request = PipelineRequest(
            cluster=CLUSTER, num_stages=num_stages, num_microbatches=(4,), schedules=(ONE_F_ONE_B,)
        )
        return plan_pipeline(step, args, {}, SIGNATURE, request).plan

    with pytest.raises(InfeasibleError, match=told) as caught:
        planned_as(50)
    most = int(re.findall(r"at most (\d+) stages", str(caught.value))[-1])
    assert len(planned_as(most).stages) == most


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_microbatches": (7,)}, "not divisible by num_microbatches=7"),
        ({"num_stages": 9}, "3 layers cannot be cut into 9 stages"),
        ({"pins": {"mesh.0": "3x4"}}, "no submesh of 12 devices; .* submeshes 1x1, .*, 4x8, 5x8$"),
        ({"pins": {"mesh.0": "3x8"}}, r"only if it is pinned too, as submesh\.0=3x8;"),
    ],
)
def test_what_no_memory_helps_is_not_searched_again(changes: dict[str, Any], told: str) -> None:
    said: list[str] = []
    cluster = mw.Cluster.virtual("5x dgx-h100")
    with pytest.raises((InfeasibleError, PlanError), match=told):
        planned(**{"pins": {}, "cluster": cluster, "report": said.append} | changes)
    assert not any("again with" in text or text.startswith("looking for") for text in said)


def test_an_axis_that_no_mesh_has_is_refused_before_planning() -> None:
    with pytest.raises(PinError, match=r"names axis 'z', the meshes have \['x', 'y'\]; use one"):
        planned({MIDDLE: "P(z)", "stages": 1})


@pytest.mark.parametrize(
    ("pins", "text"),
    [
        (
            {MIDDLE: P("x", None, None)},
            "pin '0/1': P('x', None, None) has 3 dims, but 0/1 has shape [64, 64], 2 dims; give at "
            "most so many entries, or a pattern that does not match it",
        ),
        (
            {"activation:hid*": P("x", None, None)},
            "pin 'activation:hid*': P('x', None, None) has 3 dims, but activation:hidden has shape "
            "[32, 64], 2 dims; give at most so many entries, or a pattern that does not match it",
        ),
        (
            {MIDDLE: P("x", "x")},
            "pin '0/1': P('x', 'x') uses axis 'x' twice; an axis splits at most one dim of a "
            "tensor, and once",
        ),
        (
            {"1/odd": P(None, "x")},
            "pin '1/odd': P(None, 'x') divides 1/odd of shape [32, 11] on no mesh of the cluster "
            "where 'x' is larger than 1: {'x': 2}, {'x': 2, 'y': 2}, {'x': 4}; pin another dim, "
            "pad this one, or take 'x' out of the pin",
        ),
    ],
)
def test_pins_that_no_mesh_keeps_are_refused_before_planning(pins: Any, text: str) -> None:
    step, state, batch = make_step(3)
    batch["odd"] = jax.ShapeDtypeStruct((32, 11), jnp.float32)
    said: list[str] = []
    request = PipelineRequest(cluster=CLUSTER, num_layers=3, num_microbatches=(4,), pins=pins)
    with pytest.raises(PinError) as caught:
        plan_pipeline(step, (state, batch), {}, SIGNATURE, request, said.append)
    assert str(caught.value) == text
    assert not any("bounds" in line for line in said)


@pytest.mark.parametrize("pins", [{}, {"stages": 2}])
def test_a_stage_for_each_device_keeps_every_pin(pins: dict[str, Any]) -> None:
    step, state, batch = make_step(3)
    batch["odd"] = jax.ShapeDtypeStruct((32, 11), jnp.float32)
    request = PipelineRequest(
        cluster=mw.Cluster.virtual("2 cpu"),
        num_layers=3,
        num_stages=None if pins else 2,
        num_microbatches=(4,),
        pins={"1/odd": P(None, "x"), **pins},
    )
    plan = plan_pipeline(step, (state, batch), {}, SIGNATURE, request, lambda _: None).plan
    assert [stage.num_devices for stage in plan.stages] == [1, 1]


def test_pins_of_a_stack_are_checked_against_its_layers() -> None:
    """Three layers lie in one array, of which no axis divides the first dim."""

    def step(weights: Any, batch: Any) -> Any:
        def loss_fn(weights: Any) -> Any:
            x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, weights)
            return jnp.mean(x**2)

        loss, grads = mw.value_and_grad(loss_fn)(weights)
        return weights - 0.1 * grads, loss

    args = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 64, 64), (32, 64)))
    pins = {"0*": P("x", None), "stages": 1}
    request = PipelineRequest(cluster=CLUSTER, num_microbatches=(4,), pins=pins)
    plan = plan_pipeline(step, (*args,), {}, SIGNATURE, request).plan
    layouts = {x.name: x.layout.dims for stage in plan.stages for x in stage.arguments}
    assert [layouts[f"0[{n}]"] for n in range(3)] == [((0,), ())] * 3


def test_an_axis_of_size_1_keeps_every_pin_where_it_is_asked_for() -> None:
    step, state, batch = make_step(3)
    state = [jax.ShapeDtypeStruct((11, 64), jnp.float32), *state[1:]]
    batch["x"] = jax.ShapeDtypeStruct((32, 11), jnp.float32)
    pins = {"0/0": P("x", None), "stages": 3, "submesh.0": "1x1"}
    request = PipelineRequest(cluster=CLUSTER, num_layers=3, num_microbatches=(4,), pins=pins)
    plan = plan_pipeline(step, (state, batch), {}, SIGNATURE, request).plan
    assert plan.stages[0].mesh.num_devices == 1


@pytest.mark.parametrize(
    ("pins", "error", "message"),
    [
        ({"stages": "0-5"}, PlanError, "no layer 5; the step was cut into layers 0 to 2"),
        ({"remat@3": "full"}, PlanError, "no layer 3"),
        ({"remat.1": "full"}, PlanError, r"layers of stage 1 are not known.*remat@12="),
        ({"stages": 2, "mesh.2": "2"}, PlanError, "layers of stage 2 are not known"),
        ({"0/nothing/kernel": P("x")}, PinError, "names no argument; the nearest are"),
        ({"activation:nothing": P("x")}, PinError, "names no activation"),
    ],
)
def test_pins_of_what_is_not_there(pins: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        planned(pins)


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("stages", "NAME=VALUE"),
        ("=4", "NAME=VALUE"),
        ("stage=4", "did you mean 'stages'"),
        ("remats.0=full", "did you mean 'remat'"),
        ("stages=0", "at least 1"),
        ("stages=0-3,3-5", "layer 3 stands in two stages"),
        ("stages=3-0", "end before they begin"),
        ("stages=a", "write a number of stages, or their layers"),
        ("microbatches=x", "at least 1"),
        ("schedule=fast", "no such schedule; there are 1f1b, gpipe"),
        ("schedule=interleaved-1f1b", "does not go together with pins yet"),
        ("remat.0=some", "one of none, selective, full"),
        ("mesh.0=2by4", "as 2x4"),
        ("submesh.0=8", "hosts x devices"),
        ("0/params/**=x", r"write a layout as P\(None, 'x'\)"),
        ("0/params/**=P(x y)", "write a layout"),
    ],
)
def test_pins_that_cannot_be_read(pin: str, message: str) -> None:
    with pytest.raises(PinError, match=message):
        read_pins([split_pin(pin)])
    if "'" not in message and "\\" not in message:
        run = CliRunner().invoke(
            plan_command, ["--model", "gpt-tiny", "--cluster", "1x p3.8xlarge", "--pin", pin]
        )
        assert run.exit_code == 2
        assert message in " ".join(run.output.split())


def test_layouts_in_words() -> None:
    free = P.UNCONSTRAINED
    assert layout_value("", "P(None, 'x')") == Pin(P(None, "x"))
    assert layout_value("", "P(-, (x, y), ?)") == Pin(P(None, ("x", "y"), free))
    assert layout_value("", "P(P.UNCONSTRAINED, x)") == Pin(P(free, "x"))
    assert layout_value("", "P()") == Pin(P())
    assert layout_value("", "forbid(y, x)") == Pin(forbid=("y", "x"))


def test_the_command_honours_pins(tmp_path: Any) -> None:
    run = CliRunner().invoke(
        plan_command,
        ["--step", "request.test_pipeline_pins:make_three", "--cluster", "1x p3.8xlarge",
         "--layers", "3", "--microbatches", "2", "--pin", "stages=0-0,1-2", "--pin", "mesh.0=2",
         "--pin", "0/0=P(x, -)", "--any-devices"],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    assert "2 stages on 1x p3.8xlarge" in run.output
