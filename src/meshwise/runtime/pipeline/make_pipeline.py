"""Compiles the layers of a plan and writes the instructions: a pipeline that is ready to run."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshwise.errors import PlanError
from meshwise.program.emit import emit
from meshwise.program.instructions import PipelineProgram
from meshwise.program.names import Gradient
from meshwise.program.verify import verify_in_flight, verify_program
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.runtime.device_memory import device_peak_bytes
from meshwise.runtime.devices import has_devices_here
from meshwise.runtime.job.agreement import check_agreement
from meshwise.runtime.job.job import Job
from meshwise.runtime.pipeline.buffers import BufferSpecs, buffer_specs
from meshwise.runtime.pipeline.build import CompiledLayer, StageChoice, compiled_layers
from meshwise.runtime.pipeline.compiled import CompiledProgram
from meshwise.runtime.pipeline.interpreter import (
    Pipeline,
    commit_point,
    own_instructions,
    put,
)
from meshwise.runtime.pipeline.joining import Joining, TiedGradient
from meshwise.runtime.transports.choice import transport_of
from meshwise.runtime.transports.tile_copier import TileCopier, process_of
from meshwise.schedules.schedule import Schedule
from meshwise.schedules.verify import verify_schedule
from meshwise.trace.layers.layering import Layering
from meshwise.units import counted


def make_pipeline(
    layers: Layering,
    choices: Sequence[StageChoice],
    schedule: Schedule,
    job: Job | None = None,
    sending: Sending | None = None,
    host_of: Callable[[Any], int] = process_of,
) -> Pipeline:
    """Compile a pipeline; each process of a job compiles the programs that it takes part in.

    Args:
        layers: The layers of the step.
        choices: Its stages.
        schedule: Who runs what in which order.
        job: The processes whose devices they are; None: this process alone.
        sending: How tensors pass between hosts from stage to stage; None: each tile once.
        host_of: Returns the number of a device's host; by default the number of its process.

    Raises:
        ClusterError: the processes of the job have made different programs.
        TraceError: a value crosses a cut in a way that cannot be run yet.
        ProgramError: XLA:CPU would let collectives race, or the table is no schedule.
        PlanError: the schedule is for another number of stages, or stages of one mesh see it in
            different ways.
    """
    verify_schedule(schedule)
    _check_meshes(choices, schedule)
    compiled = compiled_layers(
        layers,
        choices,
        schedule.num_microbatches,
        splits_backward=schedule.splits_backward,
        mesh_of_stage=schedule.mesh_of_stage,
    )
    executables: list[CompiledProgram] = []
    specs = []
    for layer in compiled:
        specs.append(layer.spec(len(executables)))
        executables += layer.parts.programs
    found = {schedule.mesh_of_stage[layer.stage]: layer.mesh for layer in compiled}
    meshes = [found[m] for m in range(schedule.num_meshes)]
    joining = Joining(layers, meshes[0], _tied(compiled), len(executables))
    program = emit(specs, joining.spec, schedule)
    verify_program(program)
    verify_in_flight(program, schedule)
    executables += joining.programs
    specs = buffer_specs(program, executables, meshes, layers, schedule.num_microbatches)
    here = frozenset(m for m, mesh in enumerate(meshes) if has_devices_here(mesh))
    transport, totals = None, ()
    if job is not None:
        digests = {name: _digest(part) for name, part in _compared(program, executables, specs)}
        check_agreement(job, "the programs of the pipeline", digests)
        totals = _totals(compiled, job)
        transport = transport_of(job)
    crossing = frozenset(
        number
        for number, transfer in specs.transfers.items()
        if transport is not None and transport.is_collective and transfer.is_between_processes
    )
    copier = TileCopier(transport, host_of)
    return Pipeline(
        layers=layers,
        compiled=tuple(compiled),
        meshes=tuple(meshes),
        executables=tuple(executables),
        program=program,
        schedule=schedule,
        indices={
            m: tuple(
                put(copier, np.int32(b), NamedSharding(meshes[m], PartitionSpec()))
                for b in range(schedule.num_microbatches)
            )
            for m in here
        },
        state=frozenset(i for i, _ in layers.split.aliases),
        specs=specs,
        steps=own_instructions(program, here, crossing),
        crossing=crossing,
        totals=totals,
        job=job,
        transport=transport,
        copier=copier,
        sending=sending,
        commit=commit_point(program),
    )


def _compared(
    program: PipelineProgram, executables: Sequence[CompiledProgram], specs: BufferSpecs
) -> Iterator[tuple[str, str]]:
    """Yield what must be equal in all processes, with what messages call it."""
    yield "the instructions", str(program)
    borders = (
        (e.name, e.in_avals, e.out_avals, e.in_shardings, e.out_shardings) for e in executables
    )
    yield "the borders of its programs", "\n".join(map(repr, borders))
    moves = (
        (n, t.source.shape, str(t.source.dtype), t.source.sharding, t.destination)
        for n, t in specs.transfers.items()
    )
    yield "its transfers", "\n".join(map(repr, moves))


def _totals(layers: Sequence[CompiledLayer], job: Job) -> tuple[int, ...]:
    """Return for each program of a layer the bytes of one device while it runs.

    When all are told, each process has compiled what it runs.
    """
    programs = [program for layer in layers for program in layer.parts.programs]
    mine = {n: device_peak_bytes(p.run) for n, p in enumerate(programs) if p.executable is not None}
    told: dict[int, int] = {}
    # Others may compile for long; a process that ends takes this one along.
    texts = job.exchange("the memory of the programs", json.dumps(mine), patience_s=math.inf)
    for text in texts:
        told.update((int(n), num_bytes) for n, num_bytes in json.loads(text).items())
    return tuple(told[n] for n in range(len(programs)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_meshes(choices: Sequence[StageChoice], schedule: Schedule) -> None:
    """Check that stages and schedule fit together."""
    if len(choices) != schedule.num_stages:
        raise PlanError(
            f"the schedule {schedule.name} has {counted(schedule.num_stages, 'stage')}, the plan "
            f"has {len(choices)}"
        )
    first: dict[int, int] = {}
    for s, (mesh, choice) in enumerate(zip(schedule.mesh_of_stage, choices, strict=True)):
        other = first.setdefault(mesh, s)
        if (choices[other].mesh, choices[other].devices) != (choice.mesh, choice.devices):
            raise PlanError(
                f"the schedule {schedule.name} runs stages {other} and {s} on mesh {mesh}, but the "
                "plan gives them different devices or different views of them"
            )


def _tied(compiled: Sequence[CompiledLayer]) -> dict[int, TiedGradient]:
    """Return the gradients of parameters of which more than one layer sends one."""
    count = Counter(
        name.value
        for layer in compiled
        for name in layer.parts.once[0].outputs
        if isinstance(name.value, Gradient)
    )
    return {
        name.value.parameter: TiedGradient(
            mesh=layer.mesh, layout=name.layout, num_senders=count[name.value]
        )
        for layer in compiled
        for program in layer.parts.once
        for name in program.inputs
        if isinstance(name.value, Gradient) and count[name.value] > 1
    }
