"""A trainer's point as a plan of ours: the free plan is never the slower one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import meshwise as mw
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step
from meshwise.plan.plan import Plan
from meshwise.planner.pipeline import plan_pipeline
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.trainer_plan import trainer_answer
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.trace.step import StepSignature
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
    found = plan_pipeline(step, tuple(args), {}, SIGNATURE, asked)
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
