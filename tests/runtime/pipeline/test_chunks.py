"""Several stages on a mesh: interleaved 1F1B is the step of one device."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import jax
import pytest

from doubles.layered_steps import (
    CLIPPED,
    assert_equal,
    assert_replicas_are_equal,
    gpt_step,
    host,
    layering,
    unet_step,
)
from doubles.planned_stages import StageShape, planned_stages
from meshwise.errors import PlanError
from meshwise.runtime.pipeline.build import StageChoice
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.schedules.delay import with_delays
from meshwise.schedules.registry import make_schedule
from meshwise.schedules.schedule import Schedule
from meshwise.trace.layers.layering import Layering
from oracle.problem import quick_jit
from program.random_tables import random_table

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")


def chunks(
    layers: Layering, count: int, shapes: list[StageShape], num_meshes: int
) -> list[StageChoice]:
    """Stages of which k runs on mesh k modulo the meshes."""
    found = planned_stages(layers, count, shapes[:num_meshes])
    for first in range(num_meshes, len(shapes), num_meshes):
        more = planned_stages(layers, count, shapes[first : first + num_meshes])
        found += [
            replace(choice, devices=same.devices) for choice, same in zip(more, found, strict=False)
        ]
    return found


def runs_as_one_device(step: Any, args: Any, shapes: list[StageShape], schedule: Schedule) -> None:
    layers = layering(step, args, shapes[-1][1] + 1)
    expected = [host(x) for x in jax.tree.leaves(quick_jit(step)(*args))]
    choices = chunks(layers, schedule.num_microbatches, shapes, schedule.num_meshes)
    pipeline = make_pipeline(layers, choices, schedule)
    assert len(pipeline.meshes) == schedule.num_meshes
    found = pipeline.run(jax.tree.leaves(args))
    assert_equal(found, expected)
    for array in found:
        assert_replicas_are_equal(array)


FOUR: list[StageShape] = [
    (0, 0, (2, 1), "none"),
    (1, 2, (1, 2), "full"),
    (3, 3, (2, 1), "none"),
    (4, 4, (1, 2), "none"),
]


@pytest.mark.slow
def test_two_uneven_chunks_a_mesh_are_the_step() -> None:
    schedule = make_schedule("interleaved-1f1b", num_stages=4, num_microbatches=4, num_meshes=2)
    runs_as_one_device(*unet_step(), FOUR, schedule)


@pytest.mark.slow
def test_chunks_with_clipping_tied_embedding_and_dropout_are_the_step() -> None:
    schedule = make_schedule("interleaved-1f1b", num_stages=4, num_microbatches=4, num_meshes=2)
    runs_as_one_device(*gpt_step(CLIPPED, dropout=0.2), FOUR, schedule)


@pytest.mark.slow
def test_all_chunks_on_one_mesh_are_the_step() -> None:
    shapes: list[StageShape] = [
        (0, 1, (2, 2), "none"),
        (2, 2, (2, 2), "full"),
        (3, 4, (2, 2), "none"),
    ]
    schedule = make_schedule("interleaved-1f1b", num_stages=3, num_microbatches=2, num_meshes=1)
    runs_as_one_device(*unet_step(), shapes, schedule)


@pytest.mark.slow
def test_chunks_with_gradients_of_weights_delayed_are_the_step() -> None:
    plain = make_schedule("interleaved-1f1b", num_stages=4, num_microbatches=4, num_meshes=2)
    runs_as_one_device(*unet_step(), FOUR, with_delays(plain, [1, 3]))


def test_chunks_of_one_mesh_see_it_in_one_way() -> None:
    step, args = unet_step()
    layers = layering(step, args, 5)
    schedule = make_schedule("interleaved-1f1b", num_stages=4, num_microbatches=4, num_meshes=2)
    choices = chunks(layers, 4, FOUR, 2)
    with pytest.raises(PlanError, match="runs stages 0 and 2 on mesh 0, but the plan gives them"):
        make_pipeline(layers, [*choices[:2], choices[3], choices[3]], schedule)
    with pytest.raises(PlanError, match="has 4 stages, the plan has 3"):
        make_pipeline(layers, choices[:3], schedule)


@pytest.mark.slow
def test_a_table_of_ones_own_is_the_step() -> None:
    """Two stages on one mesh, one on another, gradients of weights apart, in a random order."""
    rng = random.Random(5)
    two = (2, 1)
    shapes: list[StageShape] = [(0, 1, two, "none"), (2, 2, (1, 2), "full"), (3, 4, two, "none")]
    while True:
        schedule = random_table(rng, 3, 4)
        sizes = schedule.num_stages, schedule.num_microbatches, schedule.mesh_of_stage
        if schedule.splits_backward and sizes == (3, 4, (0, 1, 0)):
            break
    runs_as_one_device(*unet_step(), shapes, schedule)
