"""A program is checked before any device is touched.

Source: docs/decisions/0022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwise.errors import ProgramError
from meshwise.program.instructions import (
    Free,
    Instruction,
    MeshProgram,
    PipelineProgram,
    Receive,
    Run,
    Send,
)
from meshwise.program.text import around
from meshwise.schedules.schedule import Schedule
from meshwise.units import counted


@dataclass(slots=True)
class _Mesh:
    """What is known of one mesh while its list is walked."""

    live: set[int]
    made: set[int]
    sent: set[int] = field(default_factory=set[int])
    at: int = 0


@dataclass(slots=True)
class _Walk:
    meshes: list[_Mesh]
    # By number of the transfer: from, to.
    travelling: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    sent: set[int] = field(default_factory=set[int])


def verify_program(program: PipelineProgram) -> None:
    """Check that a program can run from begin to end.

    Every buffer is made once, before it is used, and not used after it was freed or donated, nor
    donated after it was sent; every transfer is received once, by the mesh that it was sent to; the
    order takes all instructions and none waits for a later one; in the end nothing is left but the
    results.

    The order also keeps processes free of deadlock.  Each dispatches its instructions as they come
    in the order, and whatever it waits for was dispatched by others, and waits itself, earlier in
    the order.  So the process that is least far has nothing to wait for that is not dispatched, and
    goes on.  This holds where only the two processes of a transfer take part in it, and where every
    process does: then transfers are matched by their number in the order, which is the same in all.

    Args:
        program: The program.

    Raises:
        ProgramError: it cannot, with the instruction and those around it.
    """
    walk = _Walk([])
    for m, mesh in enumerate(program.meshes):
        loaded = [load.buffer for load in mesh.loads]
        if len(set(loaded)) < len(loaded):
            raise ProgramError(f"mesh {m} loads a buffer twice")
        walk.meshes.append(_Mesh(set(loaded), set(loaded)))
    for m in program.order:
        if not 0 <= m < len(program.meshes):
            raise ProgramError(f"the order names mesh {m}; there are {len(program.meshes)}")
        state, mesh = walk.meshes[m], program.meshes[m]
        if state.at == len(mesh.instructions):
            raise ProgramError(f"the order takes more instructions than mesh {m} has")
        wrong = _step(walk, m, mesh.instructions[state.at])
        if wrong:
            raise ProgramError(_placed(m, mesh, state.at, wrong))
        state.at += 1
    for m, (state, mesh) in enumerate(zip(walk.meshes, program.meshes, strict=True)):
        _check_end(m, state, mesh)
    if walk.travelling:
        raise ProgramError(f"transfers {sorted(walk.travelling)} are sent and never received")


def verify_in_flight(program: PipelineProgram, schedule: Schedule) -> None:
    """Check that no mesh holds more micro-batches at once than its schedule says.

    A micro-batch is in flight on a mesh from the first executable that runs for it to the last.

    Args:
        program: The program.
        schedule: The schedule from which it was made.

    Raises:
        ProgramError: a mesh has more, with the instruction that begins one too many.
    """
    for m, (mesh, tasks) in enumerate(zip(program.meshes, schedule.tasks, strict=True)):
        runs = [(n, i) for n, i in enumerate(mesh.instructions) if isinstance(i, Run)]
        passes = [(n, run.microbatch) for n, run in runs if run.microbatch >= 0]
        counts = _in_flight([microbatch for _, microbatch in passes])
        most = max(_in_flight([task.microbatch for task in tasks]), default=0)
        for (n, _), count in zip(passes, counts, strict=True):
            if count > most:
                wrong = f"in flight: {counted(count, 'micro-batch')}, by the schedule {most}"
                raise ProgramError(_placed(m, mesh, n, wrong))


def _in_flight(microbatches: Sequence[int]) -> list[int]:
    """While each of a list of tasks runs, how many micro-batches have begun and not ended."""
    last = {m: n for n, m in enumerate(microbatches)}
    now: set[int] = set()
    counts: list[int] = []
    for n, m in enumerate(microbatches):
        now.add(m)
        counts.append(len(now))
        if last[m] == n:
            now.remove(m)
    return counts


def _step(walk: _Walk, m: int, instruction: Instruction) -> str:
    """Take an instruction; what is wrong with it, or nothing."""
    state = walk.meshes[m]
    match instruction:
        case Run():
            return _run(state, instruction)
        case Send():
            if instruction.buffer not in state.live:
                return f"buffer {instruction.buffer} is not there"
            if instruction.transfer in walk.sent:
                return f"transfer {instruction.transfer} is sent a second time"
            walk.sent.add(instruction.transfer)
            state.sent.add(instruction.buffer)
            walk.travelling[instruction.transfer] = (m, instruction.mesh)
            return ""
        case Receive():
            if walk.travelling.get(instruction.transfer) != (instruction.mesh, m):
                return f"transfer {instruction.transfer} is not on its way from there to here"
            del walk.travelling[instruction.transfer]
            return _define(state, (instruction.buffer,))
        case Free():
            for b in instruction.buffers:
                if b not in state.live:
                    return f"buffer {b} is not there"
                state.live.remove(b)
            return ""


def _run(state: _Mesh, run: Run) -> str:
    for b in run.inputs:
        if b not in state.live:
            return f"buffer {b} is not there"
    for b in run.donated:
        if b not in run.inputs:
            return f"buffer {b} is donated and not read"
        if run.inputs.count(b) > 1:
            return f"buffer {b} is donated and read twice"
        if b in state.sent:
            return f"buffer {b} is donated, and may still be on its way to another mesh"
        state.live.remove(b)
    return _define(state, run.outputs)


def _define(state: _Mesh, buffers: Sequence[int]) -> str:
    for b in buffers:
        if b in state.made:
            return f"buffer {b} is made a second time"
        state.made.add(b)
        state.live.add(b)
    return ""


def _check_end(m: int, state: _Mesh, mesh: MeshProgram) -> None:
    if state.at < len(mesh.instructions):
        raise ProgramError(_placed(m, mesh, state.at, "the order ends before it is taken"))
    results = {b for _, b in mesh.results}
    if results - state.live:
        raise ProgramError(f"results {sorted(results - state.live)} of mesh {m} are not there")
    if state.live - results:
        raise ProgramError(f"buffers {sorted(state.live - results)} of mesh {m} are never freed")


def _placed(m: int, mesh: MeshProgram, at: int, wrong: str) -> str:
    return f"instruction {at} of mesh {m}: {wrong}\n{around(mesh, at)}"
