"""A trainer's point as a plan of ours: the free plan is never the slower one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import meshwise as mw
from meshwise.baselines.pipelines.block_layers import block_ranges
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step
from meshwise.plan.plan import Plan
from meshwise.planner import pipeline, trainer_plan
from meshwise.planner.pipeline import layering_of, plan_pipeline, search_options
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.trainer_plan import in_blocks, trainer_answer
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.step import StepSignature
from meshwise.trainers.best_point import NothingFitsError, best_point
from meshwise.trainers.registry import TRAINERS

pytestmark = pytest.mark.usefixtures("layers_known")

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
REQUEST = PipelineRequest(
    cluster=mw.Cluster.virtual("1x p3.8xlarge"),
    num_microbatches=(4,),
    schedules=(ONE_F_ONE_B, Interleaved(chunks=2, hides_transfers=True)),
)


@pytest.fixture(scope="module")
def planned() -> PlannedPipeline:
    """A plan that is said to be slow."""
    sizes = {"hidden": 256, "num_heads": 4, "num_layers": 2, "seq_len": 64, "vocab_size": 512}
    step, *args = model_step(gpt_config("tiny", **sizes), 16).abstract
    asked = replace(REQUEST, num_stages=1, schedules=(ONE_F_ONE_B,))
    return slow(plan_pipeline(step, tuple(args), {}, SIGNATURE, asked))


def slow(found: PlannedPipeline) -> PlannedPipeline:
    return replace(found, timeline=replace(found.timeline, step_time_s=1e3))


def test_the_point_becomes_the_free_plan_where_it_is_faster(planned: PlannedPipeline) -> None:
    told: list[str] = []
    answer = trainer_answer(TRAINERS["megatron"], planned, REQUEST, told.append)
    assert "megatron: the point as a plan of ours" in told
    assert answer.plan.step_time_s <= answer.best.timeline.step_time_s * (1 + 1e-6)
    assert answer.slower_share >= -1e-6
    assert answer.plan.num_meshes == answer.best.point.pipeline
    assert answer.plan.num_microbatches == answer.best.point.num_microbatches
    assert answer.plan.parameters == planned.plan.parameters
    assert Plan.from_json(answer.plan.to_json()) == answer.plan
    assert "Megatron-LM" in answer.plan.space


def test_what_was_asked_is_kept(planned: PlannedPipeline) -> None:
    for changes in ({"schedules": (EAGER,)}, {"num_stages": 3}):
        asked: Any = replace(REQUEST, **changes)
        answer = trainer_answer(TRAINERS["megatron"], planned, asked)
        assert answer.plan is planned.plan


ONE = replace(
    REQUEST,
    cluster=mw.Cluster.virtual("2x p3.2xlarge"),
    num_stages=1,
    num_microbatches=(1,),
    schedules=(ONE_F_ONE_B,),
)
# More devices than rows.
MORE = replace(ONE, cluster=mw.Cluster.virtual("1x p3.16xlarge"), num_stages=None)


@pytest.fixture(scope="module")
def written() -> PlannedPipeline:
    """A free plan of attention as it is written, with a row for each device, said to be slow."""
    sizes = {"hidden": 128, "num_heads": 2, "num_layers": 1, "seq_len": 4096, "vocab_size": 64}
    step, *args = model_step(gpt_config("tiny", **sizes), 2).abstract
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "layers_have_long_attention", lambda *_: False)
        found = slow(plan_pipeline(step, tuple(args), {}, SIGNATURE, ONE))
    assert not found.plan.joins_attention
    return found


def test_of_enough_rows_attention_is_one_operator_where_scores_take_much(
    written: PlannedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    answer = trainer_answer(TRAINERS["megatron"], written, ONE, told.append)
    assert "megatron: with attention as one operator" in told
    assert answer.plan.joins_attention
    monkeypatch.setattr(trainer_plan, "layers_have_long_attention", lambda *_: False)
    other = trainer_answer(TRAINERS["megatron"], written, ONE, told.append)
    assert not other.plan.joins_attention
    assert answer.best.timeline.step_time_s < other.best.timeline.step_time_s


def test_where_nothing_fits_the_form_that_needs_least_is_named(written: PlannedPipeline) -> None:
    little = replace(MORE, memory_bytes=4 * 2**20)
    with pytest.raises(NothingFitsError) as error:
        trainer_answer(TRAINERS["megatron"], written, little)
    options = search_options(written.layers, written.plan.step_flop, little)
    with pytest.raises(NothingFitsError) as other:
        best_point(TRAINERS["megatron"], in_blocks(written.layers), little.cluster, options)
    assert error.value.num_bytes < other.value.num_bytes


def test_of_few_rows_rings_of_attention_are_tried_too(written: PlannedPipeline) -> None:
    planned, more, trainer = written, MORE, TRAINERS["megatron"]
    answer = trainer_answer(trainer, planned, more)
    joined = with_attention(planned.user)
    assert joined is not None
    layers, _ = layering_of(joined, block_ranges, "exact")
    options = search_options(layers, planned.plan.step_flop, more)
    rings, gathered = (
        best_point(trainer, source, more.cluster, options)
        for source in (layers, in_blocks(planned.layers))
    )
    assert rings.point.ring > 1
    assert answer.best.timeline.step_time_s == rings.timeline.step_time_s
    assert rings.timeline.step_time_s < gathered.timeline.step_time_s
    assert answer.options["--cp-comm-type"] == "p2p"
    assert answer.plan.joins_attention
    assert answer.slower_share >= -1e-6
