"""The stages of a pipeline case, planned."""

from __future__ import annotations

from dataclasses import replace

from doubles.pipeline_cases import PipelineCase
from doubles.planned_stages import planned_stages
from meshwise.runtime.pipeline.build import StageChoice
from meshwise.trace.layers.layering import Layering


def choices_of(layers: Layering, case: PipelineCase) -> list[StageChoice]:
    """Stages of one mesh have its devices."""
    count, num_meshes = case.schedule.num_microbatches, case.schedule.num_meshes
    found: list[StageChoice] = []
    for first in range(0, len(case.stages), num_meshes):
        found += planned_stages(layers, count, case.stages[first : first + num_meshes])
    # The first stages lie on the meshes in order.
    places = [found[mesh].devices for mesh in case.schedule.mesh_of_stage]
    return [replace(c, devices=there) for c, there in zip(found, places, strict=True)]
