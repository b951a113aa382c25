"""Instructions of pipelines: what they hold, and that every fault in them is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from doubles.in_flight import in_flight
from meshwise.errors import PlanError, ProgramError
from meshwise.program.emit import emit
from meshwise.program.instructions import Free, Instruction, PipelineProgram, Receive, Run, Send
from meshwise.program.verify import verify_in_flight, verify_program
from meshwise.schedules.registry import make_schedule
from program.specs import ROWS, chain


def program(
    name: str, num_stages: int, num_microbatches: int, layers_a_stage: int = 2
) -> PipelineProgram:
    stages = [s for s in range(num_stages) for _ in range(layers_a_stage)]
    schedule = make_schedule(name, num_stages=num_stages, num_microbatches=num_microbatches)
    return emit(*chain(stages), schedule)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b"])
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(1, 1), (1, 4), (2, 3), (4, 8)])
def test_programs_are_right_and_hold_what_the_schedule_says(
    name: str, num_stages: int, num_microbatches: int
) -> None:
    found = program(name, num_stages, num_microbatches)
    verify_program(found)
    schedule = make_schedule(name, num_stages=num_stages, num_microbatches=num_microbatches)
    for stage, mesh in enumerate(found.meshes):
        runs = [i for i in mesh.instructions if isinstance(i, Run)]
        passes = [i for i in runs if i.microbatch >= 0]
        # Two layers, forward and backward.
        assert len(passes) == 4 * num_microbatches
        order = [(i.label.split()[0], i.microbatch) for i in passes][::2]
        tasks = [
            ({"F": "forward", "B": "backward"}[t.kind], t.microbatch) for t in schedule.tasks[stage]
        ]
        assert order == tasks
        assert _most_kept(mesh.instructions, runs) == 2 * in_flight(schedule)[stage]


def _most_kept(instructions: tuple[Instruction, ...], runs: list[Run]) -> int:
    """The most results of forward passes that wait for their backward pass at once."""
    kept = {i.outputs[-1] for i in runs if i.label.startswith("forward")}
    held = most = 0
    for i in instructions:
        if isinstance(i, Run):
            held += len(kept.intersection(i.outputs))
        elif isinstance(i, Free):
            held -= len(kept.intersection(i.buffers))
        most = max(most, held)
    return most


def test_a_value_crosses_once_for_each_mesh_that_reads_it() -> None:
    found = program("1f1b", 4, 2)
    sends = [i for mesh in found.meshes for i in mesh.instructions if isinstance(i, Send)]
    # Of each micro-batch three activations to the next stage and one over two stages, and back.
    assert len([i for i in sends if i.layout == ROWS]) == 2 * 2 * (3 + 1)


def test_a_fault_is_shown_where_it_is() -> None:
    found = program("1f1b", 2, 2)
    mesh = found.meshes[1]
    at = next(n for n, i in enumerate(mesh.instructions) if isinstance(i, Receive))
    order = [n for n, m in enumerate(found.order) if m == 1]
    rest = (*mesh.instructions[:at], *mesh.instructions[at + 1 :])
    broken = replace(
        found,
        meshes=(found.meshes[0], replace(mesh, instructions=rest)),
        order=tuple(m for n, m in enumerate(found.order) if n != order[at]),
    )
    with pytest.raises(ProgramError, match=r"(?s)^instruction \d+ of mesh 1: .*\n> \d+: "):
        verify_program(broken)


def test_more_in_flight_than_the_schedule_has_is_found() -> None:
    schedule = make_schedule("1f1b", num_stages=2, num_microbatches=4)
    verify_in_flight(program("1f1b", 2, 4), schedule)
    with pytest.raises(ProgramError, match="mesh 0: in flight: 3 micro-batches, by the schedule"):
        verify_in_flight(program("gpipe", 2, 4), schedule)


def test_a_schedule_without_a_backward_pass_is_refused() -> None:
    schedule = make_schedule("inference", num_stages=2, num_microbatches=2)
    with pytest.raises(PlanError, match="has no backward pass"):
        emit(*chain([0, 1]), schedule)
