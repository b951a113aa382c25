"""All schedules together: each is planned, the fastest by simulation is taken."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from doubles.layered_steps import assert_equal, host, unet_step
from doubles.perceptron import perceptron
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.search.search import NothingFasterError
from meshwise.plan.plan import Plan
from meshwise.planner.pipeline import plan_pipeline, search_options
from meshwise.planner.schedule_choice import planned_layers
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.registry import ALL, SEARCHED, choices, named, searched_together
from meshwise.schedules.zero_bubble_h1 import ZERO_BUBBLE
from meshwise.trace.step import StepSignature
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("no_buckets", "layers_known")

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")


def narrow() -> tuple[Any, Any]:
    """Four layers, narrow in the middle."""
    step, state, batch = perceptron((128, 32, 64, 16, 128))
    return step, (state, batch)


def planned(report: Any = lambda _: None, make: Any = narrow, **changes: Any) -> Plan:
    step, args = make()
    asked = {
        "cluster": mw.Cluster.virtual("1x p3.8xlarge"),
        "num_layers": 4,
        "num_microbatches": (4,),
        "schedules": named(ALL),
    }
    request = PipelineRequest(**{**asked, **changes})
    return plan_pipeline(step, args, {}, SIGNATURE, request, report).plan


def test_what_one_search_cannot_choose_from_stands_alone() -> None:
    groups = searched_together((ONE_F_ONE_B, ZERO_BUBBLE, EAGER, Interleaved(chunks=2)))
    # What hides transfers is compared with what does not by simulation.
    assert groups == [(ONE_F_ONE_B,), (EAGER,), (ZERO_BUBBLE,), (Interleaved(chunks=2),)]
    assert searched_together((ONE_F_ONE_B, GPIPE)) == [(ONE_F_ONE_B, GPIPE)]


def test_the_fastest_of_all_by_simulation_is_taken() -> None:
    # Four stages of one layer; interleaved, two meshes with two stages each.
    alone = [planned(num_stages=4, schedules=(s,)) for s in choices().values()]
    best = planned(num_stages=4)
    assert best.step_time_s == pytest.approx(min(plan.step_time_s for plan in alone), rel=1e-9)
    assert len({plan.step_time_s for plan in alone}) > 2
    for name in choices():
        assert name in best.space


@pytest.mark.parametrize(
    ("cluster", "changes"),
    [
        pytest.param("1x p3.8xlarge", {}, marks=pytest.mark.slow),
        pytest.param("2x p3.2xlarge", {"num_microbatches": (2, 4)}, marks=pytest.mark.slow),
        pytest.param("2x p3.2xlarge", {"num_microbatches": None}, marks=pytest.mark.slow),
        ("4x p3.2xlarge", {"num_stages": 4}),
        pytest.param("2x p3.8xlarge", {"num_microbatches": None}, marks=pytest.mark.slow),
    ],
)
def test_the_default_is_as_fast_as_the_best_by_name(cluster: str, changes: Any) -> None:
    asked: Any = {"cluster": mw.Cluster.virtual(cluster), **changes}
    best = min(planned(**asked, schedules=(s,)).step_time_s for s in choices().values())
    told: list[str] = []
    plan = planned(told.append, **asked, schedules=SEARCHED)
    assert plan.step_time_s <= best * (1 + 1e-9)
    if len(plan.stages) == 1:
        # Of equals the first: no schedule makes one stage faster.
        assert plan.schedule == "1f1b"


@pytest.mark.parametrize(
    ("widths", "rows", "asked", "best", "searched"),
    [
        # A step with delays was found first. It kept the search for 1F1B from plans that hold
        # little, of which one is four times as fast.
        (
            (256, 256, 32, 256),
            256,
            {
                "cluster": mw.Cluster.virtual("2x p3.2xlarge"),
                "num_layers": 3,
                "memory_bytes": 1_451_967,
            },
            "1f1b",
            SEARCHED,
        ),
        # Under 1F1B only plans that hold as little as they can fit. They were not searched under
        # other schedules, of which one takes two thirds of the time.
        (
            (512, 256, 256, 512, 512),
            128,
            {"cluster": mw.Cluster.virtual("4x p3.2xlarge"), "memory_bytes": 3_208_950},
            "eager-1f1b-delayed",
            (ONE_F_ONE_B, *named("eager-1f1b-delayed")),
        ),
    ],
    ids=["before 1F1B", "after 1F1B"],
)
def test_what_is_to_be_beaten_hides_no_plan_where_memory_is_tight(
    widths: tuple[int, ...], rows: int, asked: Any, best: str, searched: Any
) -> None:
    def make() -> tuple[Any, Any]:
        step, state, batch = perceptron(widths, rows)
        return step, (state, batch)

    asked = {"num_microbatches": (32,), "offload": False, **asked}
    alone = planned(make=make, **asked, schedules=named(best))
    together = planned(make=make, **asked, schedules=searched)
    assert together.step_time_s <= alone.step_time_s


def test_what_is_no_faster_than_a_pipeline_of_other_layers_is_not_found() -> None:
    step, args = narrow()
    request = PipelineRequest(cluster=mw.Cluster.virtual("2x p3.2xlarge"), num_layers=4)
    found = plan_pipeline(step, args, {}, SIGNATURE, request)
    options = search_options(found.layers, found.plan.step_flop, request)
    search = partial(planned_layers, found.layers, request.cluster, options)
    with pytest.raises(NothingFasterError):
        search(beats=found)
    slower = replace(found.plan, step_time_s=1.01 * found.plan.step_time_s)
    again = search(beats=replace(found, plan=slower)).plan
    assert again.step_time_s == found.plan.step_time_s


def test_1f1b_with_delays_is_searched_first_and_once() -> None:
    told: list[str] = []
    planned(told.append, num_stages=2, schedules=SEARCHED)
    names = [t.removeprefix("schedule ") for t in told if t.startswith("schedule ")]
    assert names[:2] == ["1f1b-delayed", "1f1b"]
    assert names.count("1f1b-delayed") == 1


def test_what_is_bounded_above_the_best_is_not_planned() -> None:
    def num_planned(schedules: Any) -> int:
        told: list[str] = []
        planned(told.append, schedules=schedules, num_microbatches=(2, 4, 32))
        return sum("stages on" in text for text in told)

    interleaved = named("interleaved-1f1b")
    assert num_planned((ONE_F_ONE_B, *interleaved)) < num_planned(interleaved)


def test_gradients_of_weights_apart_are_passed_over_where_1f1b_does_not_fit() -> None:
    told: list[str] = []
    with pytest.raises(InfeasibleError, match="memory"):
        planned(told.append, num_stages=2, memory_bytes=50_000, schedules=SEARCHED, offload=False)
    passed = [t for t in told if "passed over" in t]
    assert [t.split()[1] for t in passed] == [
        "eager-1f1b:",
        "1f1b-delayed:",
        "eager-1f1b-delayed:",
        "zero-bubble-h1:",
    ]


def test_a_schedule_that_cannot_be_had_is_told_and_passed_over() -> None:
    # Two stages are one a mesh: nothing to interleave on two meshes.
    told: list[str] = []
    plan = planned(told.append, num_stages=2)
    assert plan.schedule != "interleaved-1f1b"
    assert any(t.startswith("schedule interleaved-1f1b: ") and "2 stages" in t for t in told)


def test_stages_that_alone_take_as_long_are_left_out() -> None:
    def told_of(schedules: Any) -> tuple[Plan, list[str]]:
        told: list[str] = []
        return planned(told.append, num_stages=2, schedules=schedules), told

    fast, _ = told_of((ONE_F_ONE_B,))
    plan, told = told_of((ONE_F_ONE_B, ZERO_BUBBLE))
    by_name, _ = told_of((ZERO_BUBBLE,))
    assert plan.step_time_s == min(fast.step_time_s, by_name.step_time_s)
    assert any(t.startswith("schedule zero-bubble-h1") for t in told)


def shared() -> tuple[Any, Any]:
    """Eight layers that all read one large value."""
    width = 256

    def step(state: Any, rows: Any) -> Any:
        def loss(state: Any) -> Any:
            large = jnp.tanh(rows @ state[0]).reshape(width, width, 16)
            stream = rows
            for weight in state[1:]:
                mixed = jnp.einsum("bi,bik->bk", jnp.tanh(stream @ weight), large)
                stream = mixed @ jnp.ones((16, width)) / width
            return jnp.mean(stream**2)

        value, gradients = mw.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - g, state, gradients), value

    shapes = [(width, 16 * width), *[(width, width)] * 8]
    state = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return step, (state, jax.ShapeDtypeStruct((width, width), "float32"))


def test_where_simulation_says_far_more_other_numbers_of_stages_are_tried() -> None:
    """In one stage the large value would change its layout before each layer: no formula has it."""
    told: list[str] = []
    asked = {
        "make": shared,
        "cluster": mw.Cluster.virtual("2x p3.8xlarge"),
        "num_layers": None,
        "schedules": (ONE_F_ONE_B,),
    }
    best = planned(told.append, **asked)
    assert any("other numbers of stages" in text for text in told)
    one = planned(num_stages=1, **asked)
    assert one.formula_s < best.formula_s < best.step_time_s < 0.2 * one.step_time_s


def test_what_no_schedule_allows_is_refused_as_for_one() -> None:
    two = (ONE_F_ONE_B, ZERO_BUBBLE)
    with pytest.raises(PlanError, match="not divisible"):
        planned(num_microbatches=(5,), schedules=two)
    with pytest.raises(InfeasibleError, match="memory"):
        planned(num_stages=2, memory_bytes=100, schedules=two)


def test_gradients_of_weights_that_wait_are_given_room() -> None:
    asked: Any = {"num_stages": 2, "schedules": (ZERO_BUBBLE,)}
    free = planned(**asked)
    memory_bytes = int(0.8 * max(stage.peak_bytes for stage in free.stages))
    told: list[str] = []
    tight = planned(told.append, memory_bytes=memory_bytes, **asked)
    assert any("weights wait for" in t and "of the memory left free" in t for t in told)
    for stage in tight.stages:
        assert stage.weights is not None
        assert stage.peak_bytes <= stage.memory_bytes == memory_bytes
    assert "left free for what it does not count" in tight.space


def test_stages_are_planned_again_only_where_there_is_room() -> None:
    # With half of the memory, the room that is missing at first is too much to be left free; less
    # is enough.
    asked: Any = {"num_stages": 2, "schedules": (ZERO_BUBBLE,)}
    most = max(stage.peak_bytes for stage in planned(**asked).stages)
    told: list[str] = []
    plan = planned(told.append, memory_bytes=int(0.5 * most), **asked)
    assert max(stage.peak_bytes for stage in plan.stages) <= 0.5 * most
    tries = [t for t in told if "left free" in t or "of their stage" in t]
    assert "wait there for the layer" in tries[0]
    assert any(t.startswith("no pipeline fits") for t in tries[1:-1])
    assert tries[-1].startswith("layers 2 to 3 within")
    assert not any("of their stage" in t for t in tries[:-1])


@pytest.mark.slow
def test_more_memory_gives_no_slower_pipeline() -> None:
    # Stages that are planned again fill the memory; what waits in them needs some of it.
    asked: Any = {"num_stages": 2, "schedules": (EAGER,)}
    free = planned(**asked)
    most = max(stage.peak_bytes for stage in free.stages)
    told: list[str] = []
    shares = (0.7, 0.9)
    plans = [planned(told.append, memory_bytes=int(s * most), **asked) for s in shares]
    for less, more in itertools.pairwise((*plans, free)):
        assert more.step_time_s <= less.step_time_s
    for share, plan in zip(shares, plans, strict=True):
        assert max(stage.peak_bytes for stage in plan.stages) <= share * most
    assert any("of their memory left free" in t for t in told)


@pytest.mark.usefixtures("quick_steps", "x64")
def test_a_step_trains_under_it_as_on_one_device() -> None:
    step, args = unet_step()
    expected = [host(x) for x in jax.tree.leaves(quick_jit(step)(*args))]
    parallel = mw.parallelize(step, method=mw.Auto(stages=2, schedule="all"), num_microbatches=2)
    assert_equal([host(x) for x in jax.tree.leaves(parallel(*args))], expected)
