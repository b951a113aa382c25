"""What a program computes, by running it on symbols as an executor would.

It knows nothing of the verifier: buffers, transfers and donations happen, and what goes wrong shows
when it is used.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from meshwise.program.instructions import Free, Instruction, PipelineProgram, Receive, Run, Send

# Results by number, what is passed on, and how many buffers are left on each mesh; None where it
# cannot run to its end.
Meaning: TypeAlias = tuple[dict[int, Hashable], tuple[tuple[int, int], ...], tuple[int, ...]] | None


class CannotRunError(Exception):
    """An executor would stop here."""


@dataclass(eq=False, slots=True)
class Array:
    """A value on a mesh; several buffers may hold the same one."""

    term: int
    mesh: int
    is_there: bool = True


class Machine:
    """All meshes while a program runs."""

    def __init__(self, program: PipelineProgram) -> None:
        self.program = program
        self.numbers: dict[Hashable, int] = {}
        self.travelling: dict[int, Array] = {}
        self.buffers: list[dict[int, Array]] = []
        for m, mesh in enumerate(program.meshes):
            loads = {
                x.buffer: Array(self.term("load", x.kind, x.number, x.microbatch, x.layout), m)
                for x in mesh.loads
            }
            self.buffers.append(loads)

    def term(self, *what: Hashable) -> int:
        """Equal terms have equal numbers."""
        return self.numbers.setdefault(what, len(self.numbers))

    def read(self, mesh: int, buffer: int) -> Array:
        array = self.buffers[mesh].get(buffer)
        if array is None or not array.is_there or array.mesh != mesh:
            raise CannotRunError
        return array

    def step(self, mesh: int, instruction: Instruction) -> None:
        buffers = self.buffers[mesh]
        match instruction:
            case Run():
                given = [self.read(mesh, b) for b in instruction.inputs]
                what = ("run", instruction.program, instruction.microbatch)
                terms = tuple(x.term for x in given)
                for b in instruction.donated:
                    self.read(mesh, b).is_there = False
                    del buffers[b]
                for n, b in enumerate(instruction.outputs):
                    buffers[b] = Array(self.term(*what, terms, n), mesh)
            case Send():
                array = self.read(mesh, instruction.buffer)
                term = self.term("moved", array.term, instruction.layout)
                # To its own mesh nothing need be copied.
                moved = array if instruction.mesh == mesh else Array(term, instruction.mesh)
                self.travelling[instruction.transfer] = moved
            case Receive():
                if instruction.transfer not in self.travelling:
                    raise CannotRunError
                buffers[instruction.buffer] = self.travelling.pop(instruction.transfer)
            case Free():
                for b in instruction.buffers:
                    if b not in buffers:
                        raise CannotRunError
                    del buffers[b]


def meaning(program: PipelineProgram) -> Meaning:
    """What a program makes when one thread runs it in its order."""
    machine = Machine(program)
    lists = [iter(mesh.instructions) for mesh in program.meshes]
    results: dict[int, Hashable] = {}
    # Symbols of different machines are compared as what they stand for.
    try:
        for mesh in program.order:
            machine.step(mesh, next(lists[mesh]))
        for m, mesh in enumerate(program.meshes):
            results |= {j: machine.read(m, b).term for j, b in mesh.results}
    except (CannotRunError, StopIteration):
        return None
    if any(next(rest, None) is not None for rest in lists):
        return None
    names = {number: what for what, number in machine.numbers.items()}
    left = tuple(len(buffers) for buffers in machine.buffers)
    known: dict[int, Hashable] = {}

    def spelled(number: int) -> Hashable:
        """A term by what it is made of, whatever the order in which terms were met."""
        if number not in known:
            what = names[number]
            assert isinstance(what, tuple)
            match what[0]:
                case "load":
                    known[number] = hash(what)
                case "moved":
                    known[number] = hash(("moved", spelled(what[1]), what[2]))
                case _:
                    inputs = tuple(map(spelled, what[3]))
                    known[number] = hash((*what[:3], inputs, what[4]))
        return known[number]

    return {j: spelled(term) for j, term in results.items()}, program.passed, left


def runs_mesh_by_mesh(program: PipelineProgram) -> bool:
    """Whether each mesh can run its own list, receives waiting for what is sent."""
    machine = Machine(program)
    position = [0] * len(program.meshes)
    moved = True
    while moved:
        moved = False
        for m, mesh in enumerate(program.meshes):
            while position[m] < len(mesh.instructions):
                instruction = mesh.instructions[position[m]]
                waits = isinstance(instruction, Receive)
                if waits and instruction.transfer not in machine.travelling:
                    break
                machine.step(m, instruction)
                position[m] += 1
                moved = True
    return position == [len(mesh.instructions) for mesh in program.meshes]
