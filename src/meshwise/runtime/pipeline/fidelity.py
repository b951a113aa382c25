"""What was predicted of the stages of a pipeline beside what XLA says of their programs."""

from __future__ import annotations

from collections import Counter

from meshwise.plan.plan import Plan
from meshwise.plan.stage import mesh_peaks
from meshwise.program.instructions import Run
from meshwise.runtime.fidelity import StageFidelity, bytes_of, compiled_bytes_of
from meshwise.runtime.pipeline.interpreter import Pipeline
from meshwise.runtime.pipeline.memory import measured_footprint


def stage_fidelities(pipeline: Pipeline, plan: Plan) -> tuple[StageFidelity, ...]:
    """For each stage what was predicted, and what was compiled.

    Args:
        pipeline: What runs.
        plan: What was decided.
    """
    runs = Counter(
        instruction.program
        for mesh in pipeline.program.meshes
        for instruction in mesh.instructions
        if isinstance(instruction, Run)
    )
    planned = [
        bytes_of(item for item in plan.collectives if item.stage == number)
        for number in range(len(plan.stages))
    ]
    compiled: list[Counter[str]] = [Counter() for _ in plan.stages]
    number = 0
    for layer in pipeline.compiled:
        for program in layer.parts.programs:
            found = compiled_bytes_of(program.text, layer.logical.sizes, runs[number])
            compiled[layer.stage].update(found)
            number += 1
    peaks = stage_peaks(pipeline, plan)
    return tuple(
        StageFidelity(
            predicted_peak_bytes=plan.mesh_peak_bytes[m],
            compiled_peak_bytes=peak,
            planned_bytes=dict(sorted(mine.items())),
            compiled_bytes=dict(sorted(theirs.items())),
        )
        for m, peak, mine, theirs in zip(plan.mesh_of_stage, peaks, planned, compiled, strict=True)
    )


def stage_peaks(pipeline: Pipeline, plan: Plan) -> list[int]:
    """Memory of one device of each stage's mesh, as XLA reports it for the programs."""
    held: list[int] = []
    temporary: list[int] = []
    for number, stage in enumerate(plan.stages):
        mine = [layer for layer in pipeline.compiled if layer.stage == number]
        parts = measured_footprint(mine)
        waiting = 0 if stage.weights is None else stage.weights.waiting
        temporary.append(parts.temporary_bytes)
        held.append(parts.peak_bytes(stage.in_flight, waiting) - parts.temporary_bytes)
    of_meshes = mesh_peaks(plan.mesh_of_stage, held, temporary)
    return [of_meshes[m] for m in plan.mesh_of_stage]
