"""What lives on devices at every instruction is what was known before, in the simulated order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from doubles.layered_steps import SIGNATURE, layering, unet_step
from doubles.planned_stages import planned_stages
from doubles.stage_memory import stage_shapes
from meshwise.errors import ProgramError
from meshwise.inter.layer_cost.footprint import Footprint, footprint
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import layers_of
from meshwise.program.instructions import Run
from meshwise.program.memory import live_bytes, verify_memory
from meshwise.runtime.pipeline.interpreter import Pipeline, PipelineStep
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.schedules.in_flight import held_at_peak
from meshwise.schedules.registry import make_schedule
from meshwise.schedules.schedule import Schedule, Task
from meshwise.simulate.pipeline import PricedPipeline
from meshwise.simulate.stages import StageCost
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_compile")

COUNT = 4


def gpt(schedule: str) -> tuple[Pipeline, list[Any]]:
    shapes = ((2, 1), (1, 2))
    made = model_step(model_config("gpt-small"), 4 * COUNT, optax.adam(1e-3))
    state = quick_jit(made.create)(jax.random.key(0))
    layers, _ = layers_of(made.step, (state, made.batch), {}, SIGNATURE, 6)
    table = make_schedule(schedule, num_stages=len(shapes), num_microbatches=COUNT)
    batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), made.batch)
    choices = planned_stages(layers, COUNT, stage_shapes(shapes, "none"))
    return make_pipeline(layers, choices, table), jax.tree.leaves((state, batch))


def unet(schedule: str) -> tuple[Pipeline, list[Any]]:
    """Three stages, uneven, with a skip."""
    step, args = unet_step()
    layers = layering(step, args, 5)
    table = make_schedule(schedule, num_stages=3, num_microbatches=COUNT)
    shapes: Any = [(0, 1, (2, 1), "none"), (2, 2, (1, 2), "full"), (3, 4, (2, 2), "none")]
    pipeline = make_pipeline(layers, planned_stages(layers, COUNT, shapes), table)
    return pipeline, jax.tree.leaves(args)


def ledger(step: PipelineStep, mesh: int) -> int:
    """Bytes of one device of a mesh in all arrays that the step holds, each memory once."""
    devices = set(step.pipeline.meshes[mesh].devices.flat)
    arrays = [*step.buffers[mesh].values(), *step.travelling.values()]
    found: dict[Any, dict[int, int]] = {device: {} for device in devices}
    for array in arrays:
        for shard in array.addressable_shards:
            if shard.device in devices:
                at = shard.data.unsafe_buffer_pointer()
                found[shard.device][at] = shard.data.nbytes
    return max(sum(sizes.values()) for sizes in found.values())


@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (unet, "zero-bubble-h1"),
        *(pytest.param(gpt, name, marks=pytest.mark.slow) for name in ("1f1b", "zero-bubble-h1")),
    ],
)
def test_memory_and_order_are_as_predicted_at_every_instruction(make: Any, schedule: str) -> None:
    pipeline, flat = make(schedule)
    program, sizes = pipeline.program, pipeline.specs.bytes_on_device()
    predicted = live_bytes(program, sizes)
    step = PipelineStep(pipeline, flat)
    position = [0] * len(program.meshes)
    order: list[list[Run]] = [[] for _ in program.meshes]
    measured = []
    for m in program.order:
        instruction = program.meshes[m].instructions[position[m]]
        position[m] += 1
        step.step(m, instruction)
        if isinstance(instruction, Run):
            order[m].append(instruction)
        measured.append(tuple(ledger(step, n) for n in range(len(program.meshes))))
    assert len(measured) > 100
    for found, expected in zip(measured, predicted, strict=True):
        assert found == pytest.approx(expected, rel=0.1)
    if make is gpt:
        check_planned_memory(pipeline, measured)
    check_order(pipeline, order)
    check_limits(pipeline, sizes, predicted)


def check_planned_memory(pipeline: Pipeline, measured: list[tuple[int, ...]]) -> None:
    """The most that a stage holds is what the planner counts, temporaries apart.

    Where the backward pass is split, what gradients of weights need is temporary at first.
    """
    splits = pipeline.schedule.splits_backward
    for stage in range(len(pipeline.meshes)):
        said = [
            footprint(x.planned.piece, x.planned.roles.decision, x.logical, splits_backward=splits)
            for x in pipeline.compiled
            if x.stage == stage
        ]
        total = Footprint(
            resident_bytes=sum(f.resident_bytes for f in said),
            microbatch_bytes=sum(f.microbatch_bytes for f in said),
            temporary_bytes=max(f.temporary_bytes for f in said),
            weight_bytes=sum(f.weight_bytes for f in said),
        )
        # Each mesh has one stage.
        both = total.microbatch_bytes, total.weight_bytes
        sizes = [[num_bytes] * len(pipeline.meshes) for num_bytes in both]
        planned = total.peak_bytes(*held_at_peak(pipeline.schedule, stage, *sizes)[stage])
        found = max(now[stage] for now in measured)
        held = planned - total.temporary_bytes
        assert 0.97 * held <= found <= (planned if splits else 1.03 * held)


def simulated_order(schedule: Schedule) -> list[list[Task]]:
    stages = [
        StageCost(
            forward_s=1.0 + s,
            backward_s=3.0,
            activation_gradient_s=1.5,
            weight_gradient_s=1.5,
            resident_bytes=0,
        )
        for s in range(schedule.num_stages)
    ]
    events = PricedPipeline(stages, [], []).simulate(schedule).events
    return [
        [
            Task(e.kind, e.stage, e.microbatch)
            for e in sorted(events, key=lambda e: e.start_s)
            if e.mesh == mesh and e.microbatch >= 0
        ]
        for mesh in range(schedule.num_meshes)
    ]


def check_order(pipeline: Pipeline, ran: list[list[Run]]) -> None:
    kinds = {"forward": "F", "backward": "B", "weights": "W"}
    stage_of = {layer.layer: layer.stage for layer in pipeline.compiled}
    for runs, expected in zip(ran, simulated_order(pipeline.schedule), strict=True):
        tasks = []
        for run in runs:
            name, *_, layer = run.label.split()
            if run.microbatch >= 0:
                tasks.append(Task(kinds[name], stage_of[int(layer)], run.microbatch))
        # A task is one program for each of its layers.
        distinct = list(dict.fromkeys(tasks))
        assert distinct == expected
        assert [t for n, t in enumerate(tasks) if t not in tasks[:n]] == distinct


def check_limits(pipeline: Pipeline, sizes: Any, predicted: list[tuple[int, ...]]) -> None:
    most = [max(now[m] for now in predicted) for m in range(len(pipeline.meshes))]
    verify_memory(pipeline.program, sizes, most)
    with pytest.raises(ProgramError, match="the buffers of mesh 1 hold .* a device, and there are"):
        verify_memory(pipeline.program, sizes, [most[0], most[1] - 1, *most[2:]])
