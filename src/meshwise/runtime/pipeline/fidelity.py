"""What was predicted of the stages of a pipeline beside what XLA says of their programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from jax.stages import Compiled

from meshwise.plan.fits import meshes_of
from meshwise.plan.plan import Plan
from meshwise.program.instructions import Run
from meshwise.program.layer_parts import LayerParts
from meshwise.runtime.device_memory import device_peak_bytes
from meshwise.runtime.fidelity import StageFidelity, bytes_of, compiled_bytes_of
from meshwise.runtime.pipeline.interpreter import Pipeline
from meshwise.runtime.pipeline.memory import ProgramBytes, measured_footprint, program_bytes
from meshwise.runtime.pipeline.traffic import stage_of_program


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
    stages = stage_of_program(pipeline)
    for number, found in _collectives(pipeline, runs).items():
        compiled[stages[number]].update(found)
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


def _collectives(pipeline: Pipeline, runs: Mapping[int, int]) -> dict[int, Mapping[str, int]]:
    """For each program its collectives in a step; in a job those of all processes."""
    programs = [(layer, p) for layer in pipeline.compiled for p in layer.parts.programs]
    found: dict[int, Mapping[str, int]] = {
        number: compiled_bytes_of(program.text, layer.logical.sizes, runs[number])
        for number, (layer, program) in enumerate(programs)
        if program.executable is not None
    }
    if pipeline.job is None:
        return found
    texts = pipeline.job.exchange("the collectives of programs", json.dumps(found))
    return {int(n): each for text in texts for n, each in json.loads(text).items()}


def stage_peaks(pipeline: Pipeline, plan: Plan) -> list[int]:
    """Memory of one device of each stage's mesh, as XLA reports it for the programs."""
    totals = iter(pipeline.totals or map(device_peak_bytes, _executables(pipeline)))
    parts = [
        (layer.stage, layer.parts.map(lambda _, p: program_bytes(p, next(totals))))
        for layer in pipeline.compiled
    ]
    return peaks_of_stages(plan, parts)


def _executables(pipeline: Pipeline) -> Iterator[Compiled]:
    return (program.run for layer in pipeline.compiled for program in layer.parts.programs)


def peaks_of_stages(
    plan: Plan, layers: Iterable[tuple[int, LayerParts[ProgramBytes]]]
) -> list[int]:
    """Memory of one device of each stage's mesh, from what a compiler says of its programs.

    Args:
        plan: What was decided.
        layers: For each layer its stage and its programs.
    """
    of_stage: list[list[LayerParts[ProgramBytes]]] = [[] for _ in plan.stages]
    for stage, parts in layers:
        of_stage[stage].append(parts)
    # Values that wait lie between programs, and are known without a compiler.
    stages = [
        replace(measured_footprint(mine).of_stage(0), waiting=stage.waiting_bytes)
        for mine, stage in zip(of_stage, plan.stages, strict=True)
    ]
    meshes = meshes_of(plan, stages, [stage.memory_bytes for stage in plan.stages])
    return [meshes[m].peak() for m in plan.mesh_of_stage]
