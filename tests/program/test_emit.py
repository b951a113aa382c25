"""Instructions of pipelines: what they hold, and that every fault in them is found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwise.errors import PlanError, ProgramError
from meshwise.program.emit import emit
from meshwise.program.instructions import Free, Instruction, PipelineProgram, Receive, Run, Send
from meshwise.program.verify import verify_program
from meshwise.schedules.in_flight import in_flight
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


def mutants(found: PipelineProgram) -> Iterator[tuple[str, PipelineProgram]]:
    """Programs with one instruction left out, doubled, or taken before one that it needs."""
    for m, mesh in enumerate(found.meshes):
        for at, instruction in enumerate(mesh.instructions):
            rest = [*mesh.instructions[:at], *mesh.instructions[at + 1 :]]
            yield f"without {instruction}", _with(found, m, rest, at, -1)
            twice = [*mesh.instructions[:at], instruction, *mesh.instructions[at:]]
            yield f"twice {instruction}", _with(found, m, twice, at, 1)
            if at and _needs(instruction, mesh.instructions[at - 1]):
                swapped = list(mesh.instructions)
                swapped[at - 1], swapped[at] = swapped[at], swapped[at - 1]
                yield f"too early {instruction}", _with(found, m, swapped, at, 0)


def _with(
    found: PipelineProgram, m: int, instructions: list[Instruction], at: int, more: int
) -> PipelineProgram:
    meshes = list(found.meshes)
    meshes[m] = replace(meshes[m], instructions=tuple(instructions))
    places = [n for n, mesh in enumerate(found.order) if mesh == m]
    order = list(found.order)
    if more < 0:
        del order[places[at]]
    elif more > 0:
        order.insert(places[at], m)
    return replace(found, meshes=tuple(meshes), order=tuple(order))


def _needs(later: Instruction, earlier: Instruction) -> bool:
    def reads(i: Instruction) -> set[int]:
        match i:
            case Run():
                return set(i.inputs)
            case Send():
                return {i.buffer}
            case Receive():
                return set()
            case Free():
                return set(i.buffers)

    def makes(i: Instruction) -> set[int]:
        match i:
            case Run():
                return set(i.outputs)
            case Receive():
                return {i.buffer}
            case _:
                return set()

    is_freed = isinstance(later, Free) and bool(reads(later) & reads(earlier))
    return bool(reads(later) & makes(earlier)) or is_freed


@pytest.mark.parametrize("seed", range(20))
def test_every_fault_is_found(seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice(("gpipe", "1f1b", "eager-1f1b"))
    found = program(name, rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 2))
    verify_program(found)
    for what, mutant in mutants(found):
        try:
            verify_program(mutant)
        except ProgramError:
            continue
        pytest.fail(what)


def test_a_fault_is_shown_where_it_is() -> None:
    found = program("1f1b", 2, 2)
    _, first = next(m for m in mutants(found) if m[0].startswith("without receive"))
    with pytest.raises(ProgramError, match=r"(?s)^instruction \d+ of mesh \d: .*\n> \d+: "):
        verify_program(first)


def test_a_schedule_without_a_backward_pass_is_refused() -> None:
    schedule = make_schedule("inference", num_stages=2, num_microbatches=2)
    with pytest.raises(PlanError, match="has no backward pass"):
        emit(*chain([0, 1]), schedule)
