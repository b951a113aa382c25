"""Pipelines from a step to a plan, on clusters that are not there."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from click.testing import CliRunner

import meshwise as mw
from doubles.golden_plans import P3, SIGNATURE, golden_plan, gpt_pipeline
from doubles.perceptron import perceptron, perceptron_pipeline
from doubles.pinned_jax import IS_PINNED_JAX
from meshwise.cli.option_names import shown
from meshwise.cli.plan import plan as plan_command
from meshwise.errors import InfeasibleError, PlanError, TraceError
from meshwise.graph.graph import Graph
from meshwise.models.named import MODEL_NAMES, model_config
from meshwise.models.sizes.gpt_sizes import forward_flop, gpt_config
from meshwise.models.sizes.wide_resnet_sizes import wide_resnet_config
from meshwise.models.steps import model_step
from meshwise.plan.plan import Plan
from meshwise.planner.pipeline import layers_of, plan_pipeline, search_options
from meshwise.planner.schedule_choice import planned_layers
from meshwise.report.html.page import plan_page
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.simulate.plan import simulate_plan
from meshwise.simulate.timeline import Timeline
from models.closed_forms import training_flop

pytestmark = pytest.mark.usefixtures("compiled_kernels", "layers_known")

CLUSTER = P3


def planned(**changes: Any) -> tuple[Plan, Timeline]:
    found = gpt_pipeline(**changes)
    return found.plan, found.timeline


@pytest.fixture(scope="module")
def two_stages() -> tuple[Plan, Timeline]:
    plan = golden_plan("gpt-two-stages")
    return plan, simulate_plan(plan).timeline


def test_stages_cover_layers_and_devices_once(two_stages: tuple[Plan, Timeline]) -> None:
    plan, _ = two_stages
    layers = [k for s in plan.stages for k in range(s.first_layer, s.last_layer + 1)]
    assert layers == [0, 1, 2]
    devices = [
        d for s in plan.stages for d in range(s.first_device, s.first_device + s.mesh.num_devices)
    ]
    assert sorted(devices) == [0, 1, 2, 3]
    assert [k.layer for s in plan.stages for k in s.layers] == layers
    assert all(s.peak_bytes <= s.memory_bytes for s in plan.stages)


def test_the_simulation_agrees_with_the_formula(two_stages: tuple[Plan, Timeline]) -> None:
    plan, timeline = two_stages
    slowest = max(s.forward_s + s.backward_s for s in plan.stages)
    ideal = sum(s.forward_s + s.backward_s for s in plan.stages) + 3 * slowest
    assert timeline.step_time_s >= ideal * (1 - 1e-9)
    # Latencies of transfers weigh much in so small a model; both meshes stop for them.
    assert plan.step_time_s == pytest.approx(plan.formula_s, rel=0.25)


def test_micro_batches_that_would_cut_a_group_of_tokens_are_passed_over() -> None:
    config = model_config("moe-tiny", group_size=64, num_layers=2)  # two rows of 32 tokens
    step, state, batch = model_step(config, 4).abstract
    layers, flop = layers_of(step, (state, batch), {}, SIGNATURE, 1)
    cluster = mw.Cluster.virtual("1x p3.2xlarge")
    request = PipelineRequest(cluster=cluster, remats=("none",), num_stages=1)
    told: list[str] = []
    options = search_options(layers, flop, request)
    plan = planned_layers(layers, cluster, options, told.append).plan
    assert plan.num_microbatches <= 2
    assert any(text.startswith("B=4: the step does not separate") for text in told)
    asked = dataclasses.replace(request, num_microbatches=(4,))
    with pytest.raises(TraceError, match="does not separate"):
        planned_layers(layers, cluster, search_options(layers, flop, asked))


def test_more_freedom_is_never_slower() -> None:
    free, two = (perceptron_pipeline(**asked).plan for asked in ({}, {"num_stages": 2}))
    assert free.formula_s <= two.formula_s * (1 + 1e-9)
    assert dict(free.tried).keys() == {4}


@pytest.mark.skipif(not IS_PINNED_JAX, reason="the plan of the file is of another JAX")
def test_transfers_that_matter_are_hidden_by_default(
    two_stages: tuple[Plan, Timeline],
) -> None:
    stopped, _ = planned(num_stages=2, schedules=(ONE_F_ONE_B,))
    hidden, timeline = two_stages
    assert hidden.schedule == "eager-1f1b"
    eager, eager_timeline = planned(num_stages=2, schedules=(EAGER,))
    assert hidden == dataclasses.replace(eager, tried=hidden.tried, space=hidden.space)
    # A plan that was read from a file simulates as it did when it was made.
    assert timeline == eager_timeline
    assert hidden.step_time_s < 0.9 * stopped.step_time_s


def test_tight_memory_is_kept_or_refused(two_stages: tuple[Plan, Timeline]) -> None:
    loose, _ = two_stages
    limit = int(loose.peak_bytes * 0.85)
    tight, _ = planned(num_stages=2, memory_bytes=limit)
    assert tight.peak_bytes <= limit
    assert tight.formula_s >= loose.formula_s * (1 - 1e-9)
    with pytest.raises(InfeasibleError, match="memory"):
        planned(num_stages=2, memory_bytes=limit // 50)


def test_hosts_that_differ() -> None:
    mixed = mw.Cluster.virtual("1x p3.8xlarge + 1x p4d.24xlarge")
    step, state, batch = perceptron((1024,) * 3, 4096)
    request = PipelineRequest(
        cluster=mixed,
        num_layers=2,
        num_microbatches=(4,),
        remats=("none",),
        use_all_devices=False,
    )
    plan = plan_pipeline(step, (state, batch), {}, SIGNATURE, request).plan
    used = [
        d for s in plan.stages for d in range(s.first_device, s.first_device + s.mesh.num_devices)
    ]
    assert len(set(used)) == len(used)
    assert set(used) <= set(range(12))
    # The faster host takes part.
    assert max(used) >= 4


def test_the_text_names_what_was_decided(two_stages: tuple[Plan, Timeline]) -> None:
    plan, _ = two_stages
    text = plan.explain()
    assert "2 stages on 1x p3.8xlarge" in text
    assert "4 micro-batches" in text
    assert "token_embedding" in text
    assert "parameters that several layers read" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_batch_of_different_sizes_is_refused() -> None:
    def step(state: Any, batch: Any) -> Any:
        loss, grads = mw.value_and_grad(lambda w: jnp.mean(batch["x"] @ w) + jnp.mean(batch["y"]))(
            state
        )
        return state - grads, loss

    batch = {
        "x": jax.ShapeDtypeStruct((4, 3), jnp.float32),
        "y": jax.ShapeDtypeStruct((2,), jnp.float32),
    }
    request = PipelineRequest(cluster=CLUSTER)
    told = (
        r"batch arguments have different numbers of rows: argument 1\['y'\] has 2 \(dim 0\) where "
        r"argument 1\['x'\] has 4;"
    )
    with pytest.raises(TraceError, match=told):
        plan_pipeline(step, (jnp.ones((3, 3)), batch), {}, SIGNATURE, request)


def make_own_step() -> tuple[Any, Any, Any]:
    tx = optax.sgd(0.1)
    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 4

    def step(state: Any, batch: Any) -> Any:
        params, opt = state

        def loss_fn(params: Any) -> Any:
            x = batch["x"]
            for w in params:
                x = jnp.tanh(x @ w)
            return jnp.mean((x - batch["y"]) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(params)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    rows = jax.ShapeDtypeStruct((32, 64), jnp.float32)
    return step, (weights, jax.eval_shape(tx.init, weights)), {"x": rows, "y": rows}


def test_the_command_plans_a_step_of_ones_own(tmp_path: Any) -> None:
    out, trace, page = (tmp_path / name for name in ("plan.json", "trace.json", "plan.html"))
    run = CliRunner().invoke(
        plan_command,
        ["--step", "planner.test_pipeline:make_own_step", "--cluster", "1x p3.8xlarge",
         "--microbatches", "2", "--stages", "2", "--layers", "4", "--out", str(out),
         "--trace", str(trace), "--html", str(page), "--json"],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    read = Plan.from_json(out.read_text())
    assert read.to_json() in run.output
    assert len(read.stages) == 2
    assert read.num_microbatches == 2
    assert read.model == "planner.test_pipeline:make_own_step"
    # Equal layers are planned once, and each keeps its own names.
    layers = [layer for stage in read.stages for layer in stage.layers]
    assert [layer.equal_to for layer in layers] == [0, 1, 1, 3]
    names = [[item.name for item in layer.arguments] for layer in layers]
    assert names == [["0/0/0"], ["0/0/1"], ["0/0/2"], ["0/0/3"]]
    assert json.loads(trace.read_text())["traceEvents"]
    # The page has what no plan says: how fast other schedules were.
    before, _, after = page.read_text().partition("<h2>Best plan by schedule</h2>")
    table, end, after = after.partition("</table></div>")
    assert f">{read.schedule}<" in table
    assert end
    assert before + after == plan_page(shown(read, "plan"), simulated=())


@pytest.mark.parametrize("stages", ["1", "2"])
@pytest.mark.parametrize("made", ["loss_before", "loss_before_equinox"])
def test_a_loss_before_the_state_is_refused(made: str, stages: str) -> None:
    step = f"doubles.own_steps:{made}"
    args = ["--step", step, "--cluster", "1x p3.8xlarge", "--stages", stages]
    run = CliRunner().invoke(plan_command, args)
    assert run.exit_code == 1
    text = f"--step {step}: the step returns (loss, state); return (state, loss)"
    assert str(run.exception) == text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cluster", "1x p3.8xlarge"], "either --model or --step"),
        (["--cluster", "1x nothing", "--model", "gpt-tiny"], "no host"),
        (["--cluster", "1x p3.8xlarge", "--model", "gpt-nothing"], "no model"),
        (["--cluster", "1x p3.8xlarge", "--step", "nothing"], "my_module:make"),
        (["--cluster", "1x p3.8xlarge", "--step", "json:nothing"], "json:nothing"),
        (["--model", "gpt-tiny"], "--cluster"),
    ],
)
def test_wrong_arguments_are_told(args: list[str], message: str) -> None:
    run = CliRunner().invoke(plan_command, args)
    assert run.exit_code == 2
    assert message in run.output


def test_a_model_is_a_size_of_its_family() -> None:
    assert model_config("GPT-39b", seq_len=64) == gpt_config("39B", seq_len=64)
    assert model_config("wide-resnet-1b") == wide_resnet_config("1B")
    assert len({model_config(name) for name in MODEL_NAMES}) == len(MODEL_NAMES)


def test_microbatches_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(PlanError, match=r"16 is not divisible by num_microbatches=3.*\[1, 2, 4"):
        planned(num_microbatches=(4, 3))
    with pytest.raises(PlanError, match="num_microbatches is empty"):
        planned(num_microbatches=())


def test_what_cannot_be_written_is_refused_before_planning(tmp_path: Any) -> None:
    out = tmp_path / "missing" / "plan.json"
    run = CliRunner().invoke(
        plan_command,
        ["--step", "test_pipeline_planning:refuse", "--cluster", "dgx-a100", "--out", str(out)],
    )
    assert run.exit_code == 1
    assert "make it first" in run.output


def refuse() -> Any:
    raise AssertionError("the step was asked for")


def test_the_graphs_to_plan_hold_the_work_of_the_step() -> None:
    config = model_config("gpt-tiny", num_layers=2)
    step, state, batch = model_step(config, 8).abstract
    layers, flop = layers_of(step, (state, batch), {}, SIGNATURE, 3)
    assert flop >= forward_flop(config, 8)

    def planned_flop(remat: Any) -> float:
        return sum(_dense_flop(layers.graph(k, k, 4, remat).graph) for k in range(3))

    assert planned_flop("none") == training_flop(config, 8)
    # The last product of a piece is not run again where nothing reads it.
    assert 3.4 * forward_flop(config, 8) <= planned_flop("full") <= 4 * forward_flop(config, 8)


def _dense_flop(graph: Graph) -> float:
    total = sum(op.flop for op in graph.operators if op.heavy)
    for op in graph.operators:
        if op.structure is not None:
            for part, body in zip(op.structure.parts, op.bodies, strict=True):
                total += part.trips * _dense_flop(body)
    return total
