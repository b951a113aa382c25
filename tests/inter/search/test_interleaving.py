"""Interleaved 1F1B by name: cuts, memory, prediction and meaning of several stages a mesh."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import meshwise as mw
from doubles.in_flight import in_flight
from doubles.layered import gpt_layers
from doubles.layered_steps import CLIPPED, assert_equal, gpt_step, host, unet_step
from doubles.perceptron import perceptron
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.best_cuts import best_cuts
from meshwise.inter.search.chunked_pipeline import Shape, count_at_peak
from meshwise.inter.search.findings import Findings
from meshwise.inter.search.finishing import finished
from meshwise.inter.search.interleaving import interleaved_pipelines
from meshwise.inter.search.search_space import SearchOptions
from meshwise.intra.options import IntraOptions
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.plan.plan import Plan
from meshwise.planner.pipeline import layers_of
from meshwise.report.simulation_text import simulation_text
from meshwise.schedules.in_flight import held_at_peak
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.pipeline_schedule import PipelineSchedule
from meshwise.schedules.registry import SEARCHED, choices, make_schedule
from meshwise.simulate.plan import Changes, simulate_plan
from meshwise.trace.step import StepSignature
from oracle.problem import quick_jit
from oracle.tolerances import MEMORY_ABOVE, MEMORY_BELOW

NAME = "interleaved-1f1b"


@given(
    costs=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    parts=st.integers(1, 4),
    missing=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=3),
)
def test_cuts_are_the_best_of_all(
    costs: list[int], parts: int, missing: set[tuple[int, int]]
) -> None:
    count = len(costs)
    cost = np.full((count, count), np.inf)
    for i, j in itertools.combinations_with_replacement(range(count), 2):
        if (i, j) not in missing:
            cost[i, j] = sum(costs[i : j + 1])

    def value(bounds: tuple[int, ...]) -> tuple[float, float]:
        runs = [cost[a, b - 1] for a, b in itertools.pairwise((0, *bounds, count))]
        return max(runs), sum(r * r for r in runs)

    every = [value(bounds) for bounds in itertools.combinations(range(1, count), parts - 1)]
    finite = [v for v in every if np.isfinite(v[0])]
    found = best_cuts(cost, parts)
    if not finite or parts > count:
        assert found is None
        return
    assert found is not None
    assert [first for first, _ in found[1:]] == [last + 1 for _, last in found[:-1]]
    assert value(tuple(first for first, _ in found[1:])) == min(finite)


@given(n=st.integers(1, 4), v=st.integers(1, 3), rounds=st.integers(1, 3), seed=st.integers(0, 99))
def test_what_a_mesh_holds_is_the_most_of_any_time(n: int, v: int, rounds: int, seed: int) -> None:
    table = make_schedule(NAME, num_stages=n * v, num_microbatches=n * rounds, num_meshes=n)
    sizes = [float(x) for x in np.random.default_rng(seed).integers(1, 9, n * v)]
    for mesh, tasks in enumerate(table.tasks):
        found = held_at_peak(table, mesh, sizes, sizes)
        held = {k: count for k, (count, waiting) in found.items() if waiting == 0}
        assert held.keys() == found.keys()
        assert all(held[k] <= in_flight(table)[k] for k in held)
        now, most = 0.0, 0.0
        for task in tasks:
            now += sizes[task.stage] * (1 if task.kind == "F" else -1)
            most = max(most, now)
        assert sum(count * sizes[k] for k, count in held.items()) == most


@pytest.mark.parametrize("schedule", [s for s in SEARCHED if s.chunks > 1], ids=lambda s: s.choice)
@settings(deadline=None)
@given(n=st.integers(2, 6), v=st.integers(2, 4), rounds=st.integers(1, 9), seed=st.integers(0, 99))
def test_few_micro_batches_say_what_a_mesh_holds_of_many(
    schedule: PipelineSchedule, n: int, v: int, rounds: int, seed: int
) -> None:
    if schedule.any_chunks:
        schedule = replace(schedule, chunks=v)
    count, stages = n * rounds, n * schedule.chunks
    assume(schedule.allows(n, count))
    kind = mw.Cluster.virtual("1x dgx-a100").submesh_kinds()[0]
    few = count_at_peak(Shape(kind, n, count, 1, schedule))
    assert few <= 2 * n
    sizes = [float(x) for x in np.random.default_rng(seed).integers(1, 9, stages)]
    for mesh in range(n):
        of_few, of_all = (
            held_at_peak(schedule.table(stages, c, n), mesh, sizes, [0.0] * stages)
            for c in (few, count)
        )
        num_bytes = [sum(h.in_flight * sizes[k] for k, h in o.items()) for o in (of_few, of_all)]
        assert num_bytes[0] == num_bytes[1]


def step(made_of: Any = unet_step, **options: Any) -> tuple[Any, Any]:
    made, args = made_of()
    method = mw.Auto(stages=options.pop("stages", 4), schedule=NAME)
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    options = {"num_microbatches": 4} | options
    return mw.parallelize(made, method=method, cluster=cluster, **options), args


def shapes_step() -> tuple[Any, Any]:
    """Four layers that are only planned, with activations of some size."""
    made, state, batch = perceptron((256,) * 5, 64)
    return made, (state, batch)


@pytest.fixture(scope="module")
def plan() -> Plan:
    with jax.enable_x64(True):
        parallel, args = step()
        found = parallel.plan(*args)
    assert isinstance(found, Plan)
    return found


def test_meshes_take_turns(plan: Plan) -> None:
    assert plan.mesh_of_stage == (0, 1, 0, 1)
    assert plan.num_meshes == 2
    assert [stage.first_device for stage in plan.stages] == [0, 1, 0, 1]
    assert plan.table().mesh_of_stage == plan.mesh_of_stage
    text = plan.explain()
    assert "stages that share a mesh" in text
    assert "0, 2" in text


def test_what_is_predicted_is_what_is_simulated() -> None:
    parallel, args = step(shapes_step)
    plan = parallel.plan(*args)
    simulation = simulate_plan(plan)
    assert simulation.timeline.step_time_s == plan.step_time_s
    # Predicted are what a mesh holds most and the most that one stage uses, together.
    for found, predicted in zip(simulation.timeline.peak_bytes, plan.mesh_peak_bytes, strict=True):
        assert found <= predicted <= 1.02 * found
    assert plan.peak_bytes == max(plan.mesh_peak_bytes)
    assert plan.peak_bytes > max(stage.peak_bytes for stage in plan.stages)
    assert simulation.too_large == ()
    with pytest.raises(PlanError, match="1f1b needs 1 on each mesh; the plan has 4 stages on 2"):
        simulate_plan(plan, Changes(schedule=ONE_F_ONE_B))
    assert "mesh" in simulation_text(plan, simulation)


def test_a_file_keeps_it_and_an_edited_one_is_refused(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    moved = [*plan.stages[:2], plan.stages[3], replace(plan.stages[2], first_device=0)]
    stages = tuple(
        replace(old, first_device=new.first_device)
        for old, new in zip(plan.stages, moved, strict=True)
    )
    with pytest.raises(PlanError, match=r"stages\[2\].first_device.*mesh 1.* on mesh 0 of 2"):
        Plan.from_json(replace(plan, stages=stages).to_json())
    other = replace(plan, schedule="1f1b")
    with pytest.raises(PlanError, match="field 'schedule'"):
        Plan.from_json(other.to_json())


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb-v", "dualpipe-v"])
def test_nothing_that_is_left_out_is_faster(name: str) -> None:
    made, state, batch = perceptron((1024,) * 9, 64)
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    layers, flop = layers_of(made, (state, batch), {}, signature, 8)
    cluster, schedule = mw.Cluster.virtual("2x p3.2xlarge"), choices()[name]
    options = SearchOptions(
        batch_size=64, step_flop=flop, schedules=(schedule,), num_microbatches=(4, 16)
    )
    costs = VariantCosts(layers, options.intra)
    findings = Findings(costs, cluster.num_devices)
    told: list[str] = []
    # How many were planned before the first one was given away.
    before: list[int] = []
    tried: dict[int, float] = {}

    def simulated(cuts: bool) -> list[float]:
        told.clear()
        found: list[float] = []
        for pipeline in interleaved_pipelines(
            cluster,
            options,
            schedule,
            findings,
            told.append,
            lambda: min(found, default=np.inf) if cuts else np.inf,
            tried=tried,
        ):
            if not found:
                before.append(len(told))
            asked = {"batch_size": 64, "step_flop": flop}
            found.append(finished(layers, cluster, pipeline, costs, **asked)[1].step_time_s)
        return found

    some, planned = simulated(cuts=True), len(told)
    every = simulated(cuts=False)
    assert 0 < planned <= len(told) == len(every)
    assert min(some) == min(every)
    # Its step is to be beaten at once.
    assert before == [1, 1]
    assert sorted(tried) == [4, 16]
    assert len(some) < len(every)
    if schedule.any_chunks:
        stages = {text.split()[1] for text in told}
        assert stages == {"4", "8"}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 3}, "no 3 stages on 2 devices .* 2 times as many as equal meshes"),
        ({"num_microbatches": 1}, r"micro-batches \(1\) a multiple of the meshes"),
        ({"pins": {"**/kernel": mw.Pin(forbid="x")}}, "does not go together with pins"),
    ],
)
def test_what_cannot_be_interleaved_is_refused(options: dict[str, Any], message: str) -> None:
    parallel, args = step(**options)
    with pytest.raises(PlanError, match=message):
        parallel.plan(*args)


def test_too_little_memory_is_told() -> None:
    parallel, args = step(shapes_step, memory_bytes=1_250_000)
    with pytest.raises(InfeasibleError, match="no pipeline under .* fits.*of 1.19") as caught:
        parallel.plan(*args)
    # With the memory that it names there is one.
    enough = int(re.findall(r"memory_bytes=(\d+)", str(caught.value))[0])
    parallel, args = step(shapes_step, memory_bytes=enough)
    assert parallel.plan(*args).peak_bytes <= enough


@pytest.mark.usefixtures("quick_steps", "x64")
def test_its_file_trains_as_on_one_device(plan: Plan) -> None:
    made, args = unet_step()
    expected = [host(x) for x in jax.tree.leaves(quick_jit(made)(*args))]
    kept = Plan.from_json(plan.to_json())
    replayed = mw.parallelize(made, method=mw.Replay(kept), num_microbatches=4)
    assert_equal([host(x) for x in jax.tree.leaves(replayed(*args))], expected)
    assert replayed.plan(*args) == plan


@pytest.mark.slow
@pytest.mark.usefixtures("quick_steps", "x64")
def test_it_trains_as_on_one_device() -> None:
    parallel, args = step(lambda: gpt_step(CLIPPED))
    expected = [host(x) for x in jax.tree.leaves(quick_jit(gpt_step(CLIPPED)[0])(*args))]
    assert_equal([host(x) for x in jax.tree.leaves(parallel(*args))], expected)


@pytest.mark.slow
def test_memory_of_its_stages_is_that_of_xla() -> None:
    made = model_step(model_config("gpt-small"), 8, optax.adam(1e-3))
    state = jax.eval_shape(made.create, jax.random.key(0))
    parallel = mw.parallelize(
        made.step,
        method=mw.Auto(stages=4, schedule=NAME),
        cluster=mw.Cluster.local(),
        num_microbatches=4,
    )
    for stage in parallel.fidelity(state, made.batch):
        ratio = stage.predicted_peak_bytes / stage.compiled_peak_bytes
        assert 1 - MEMORY_BELOW <= ratio <= 1 + MEMORY_ABOVE


@pytest.mark.parametrize("joins_attention", [False, True])
def test_three_axes_are_tried_where_keys_may_go_round(*, joins_attention: bool) -> None:
    layers = gpt_layers(8, joins_attention=joins_attention)
    options = SearchOptions(
        batch_size=8,
        step_flop=1e9,
        num_microbatches=(4,),
        remats=("none",),
        num_stages=4,
        intra=IntraOptions(rows_first=True),
    )
    (schedule,) = (s for s in SEARCHED if s.name == NAME)
    cluster = mw.Cluster.virtual("4x p3.8xlarge")
    told: list[str] = []
    findings = Findings(VariantCosts(layers, options.intra), cluster.num_devices)
    found = list(interleaved_pipelines(cluster, options, schedule, findings, told.append))
    sizes = {way.mesh.sizes for pipeline in found for ways in pipeline.variants for way in ways}
    # Two meshes of two hosts, and two rows in a micro-batch.
    tried = any("as 2x2x2" in line for line in told)
    assert tried == joins_attention
    assert (2, 4) in sizes
