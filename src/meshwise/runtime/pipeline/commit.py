"""Where in a step the state is taken over: before it a failure costs nothing but the step.

Dispatch is asynchronous, so that a program of a forward or backward pass may fail after the update
was dispatched, which then overwrites the state with nothing.  So everything that was dispatched is
waited for before the first program that overwrites an argument.
"""

from __future__ import annotations

from meshwise.program.instructions import Instruction, PipelineProgram, Run


def commit_point(program: PipelineProgram) -> int:
    """Count the instructions, in order of dispatch, before one that overwrites an argument.

    Args:
        program: What all meshes do.
    """
    arguments = [
        {load.buffer for load in mesh.loads if load.kind == "argument"} for mesh in program.meshes
    ]
    position = [0] * len(program.meshes)
    for n, mesh in enumerate(program.order):
        instruction = program.meshes[mesh].instructions[position[mesh]]
        position[mesh] += 1
        if _overwrites(instruction, arguments[mesh]):
            return n
    return len(program.order)


def _overwrites(instruction: Instruction, arguments: set[int]) -> bool:
    return isinstance(instruction, Run) and not arguments.isdisjoint(instruction.donated)
