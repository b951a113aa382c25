"""Data parallelism, ZeRO and Megatron beside a plan: the same costs, and nothing held back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from evaluation.baselines.one_stage import OneStage

import meshwise as mw
from meshwise.baselines.rival_method import RivalMethod
from meshwise.errors import PlanError
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import plan_pipeline, search_options
from meshwise.planner.rival_methods import rivals_of_pipeline
from meshwise.planner.schedule_choice import PlannedPipeline
from meshwise.planner.trainer_plan import in_blocks
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.trace.step import StepSignature

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
REQUEST = PipelineRequest(
    cluster=mw.Cluster.virtual("1x p3.8xlarge"),
    num_microbatches=(2, 4),
    schedules=(ONE_F_ONE_B,),
)
NAMES = ["data parallel", "ZeRO-2", "ZeRO-3"]


def squares(state: Any, batch: Any) -> Any:
    def loss_fn(params: Any) -> Any:
        out = jnp.tanh(batch @ params["w1"]) @ params["w2"]
        return jnp.mean((out - batch) ** 2)

    loss, grads = mw.value_and_grad(loss_fn)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), loss


STATE = {
    "w1": jax.ShapeDtypeStruct((64, 512), "float32"),
    "w2": jax.ShapeDtypeStruct((512, 64), "float32"),
}
BATCH = jax.ShapeDtypeStruct((64, 64), "float32")


@pytest.fixture(scope="module")
def gpt() -> PlannedPipeline:
    sizes = {"hidden": 256, "num_heads": 4, "num_layers": 2, "seq_len": 64, "vocab_size": 512}
    step, *args = model_step(gpt_config("tiny", **sizes), 16).abstract
    return plan_pipeline(step, tuple(args), {}, SIGNATURE, replace(REQUEST, num_stages=1))


def by_name(rivals: tuple[RivalMethod, ...]) -> dict[str, RivalMethod]:
    return {rival.name: rival for rival in rivals}


@pytest.fixture(scope="module")
def rivals(gpt: PlannedPipeline) -> dict[str, RivalMethod]:
    return by_name(rivals_of_pipeline(gpt, REQUEST))


def test_a_pipeline_has_four_rivals(gpt: PlannedPipeline, rivals: dict[str, RivalMethod]) -> None:
    assert list(rivals) == [*NAMES, "Megatron-LM (megatron-core 0.19.2)"]
    for rival in rivals.values():
        assert rival.step_time_s is not None
        assert rival.peak_bytes is not None
        assert "2 micro-batches, remat none" in rival.how
    # The free plan of one stage is one of those that split state as they like.
    fastest = min(rivals[name].step_time_s or 0.0 for name in NAMES)
    assert gpt.plan.simulated_s <= fastest * (1 + 1e-6)


def test_they_are_the_baselines_of_the_evaluation(
    gpt: PlannedPipeline, rivals: dict[str, RivalMethod]
) -> None:
    blocks = in_blocks(gpt.layers)
    options = search_options(blocks, gpt.plan.step_flop, REQUEST)
    for name, method in (("data parallel", "DataParallel"), ("ZeRO-3", "Zero3")):
        decide = OneStage(name=name, methods=(method,))
        other = decide(blocks, REQUEST.cluster, options)
        assert rivals[name].step_time_s == pytest.approx(other.step_time_s, rel=1e-6)


def test_what_does_not_fit_says_how_much_it_needs(
    gpt: PlannedPipeline, rivals: dict[str, RivalMethod]
) -> None:
    free = rivals
    memory = int(0.6 * (free["data parallel"].peak_bytes or 0))
    rivals = by_name(rivals_of_pipeline(gpt, replace(REQUEST, memory_bytes=memory)))
    assert rivals["data parallel"].step_time_s is None
    assert (rivals["data parallel"].peak_bytes or 0) > memory
    # ZeRO-3 makes room by more micro-batches or by recomputing, before it gives up.
    assert rivals["ZeRO-3"].step_time_s is not None
    assert rivals["ZeRO-3"].how != free["ZeRO-3"].how
    odd = by_name(rivals_of_pipeline(gpt, replace(REQUEST, num_microbatches=(16,))))
    assert "has no point" in odd["data parallel"].how
    assert odd["data parallel"].peak_bytes is None


def test_on_one_mesh_they_are_the_plans_of_the_methods() -> None:
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    page = mw.parallelize(squares, cluster=cluster).page(STATE, BATCH, rivals=True)
    methods = [mw.DataParallel(), mw.Zero2(), mw.Zero3()]
    plans = [mw.parallelize(squares, cluster=cluster, method=m).plan(STATE, BATCH) for m in methods]
    mine = mw.parallelize(squares, cluster=cluster).plan(STATE, BATCH)
    for name, plan in zip(NAMES, plans, strict=True):
        more = plan.step_time_s / mine.step_time_s - 1
        row = page[page.index(f">{name}<") :].partition("</tr>")[0]
        assert f"{more:+.1%}" in row
        assert ", 1 micro-batch</small>" in row
    assert ">Megatron<" in page
    alone = mw.parallelize(squares, cluster=cluster).page(STATE, BATCH)
    assert "Beside other methods" not in alone


def test_a_replayed_plan_has_no_rivals() -> None:
    cluster = mw.Cluster.virtual("1x p3.8xlarge")
    plan = mw.parallelize(squares, cluster=cluster).plan(STATE, BATCH)
    again = mw.parallelize(squares, cluster=cluster, method=mw.Replay(plan))
    assert "Layout of each argument" in again.page(STATE, BATCH)
    with pytest.raises(PlanError, match="Replay takes a plan as it is, so it has no rivals"):
        again.page(STATE, BATCH, rivals=True)
