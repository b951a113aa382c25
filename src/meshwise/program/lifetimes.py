"""Buffers are freed after their last use."""

from __future__ import annotations

from dataclasses import replace

from meshwise.program.instructions import Free, Instruction, PipelineProgram, Receive, Run, Send


def touched(instruction: Instruction) -> tuple[int, ...]:
    """Buffers that an instruction reads, makes or frees."""
    match instruction:
        case Run():
            return (*instruction.inputs, *instruction.outputs)
        case Send() | Receive():
            return (instruction.buffer,)
        case Free():
            return instruction.buffers


def with_frees(program: PipelineProgram) -> PipelineProgram:
    """Free each buffer that is no result after its last use.

    Args:
        program: A program that frees nothing.

    Returns:
        The program that frees them.
    """
    last: list[dict[int, int]] = []
    for mesh in program.meshes:
        uses = {b: at for at, i in enumerate(mesh.instructions) for b in touched(i)}
        kept = {b for _, b in mesh.results}
        gone = {b for i in mesh.instructions if isinstance(i, Run) for b in i.donated}
        last.append({b: at for b, at in uses.items() if b not in kept | gone})
    order: list[int] = []
    lists: list[list[Instruction]] = [[] for _ in program.meshes]
    for mesh, at, instruction in program.in_order():
        lists[mesh].append(instruction)
        order.append(mesh)
        freed = tuple(b for b in dict.fromkeys(touched(instruction)) if last[mesh].get(b) == at)
        if freed:
            lists[mesh].append(Free(buffers=freed))
            order.append(mesh)
    meshes = zip(program.meshes, lists, strict=True)
    return replace(
        program,
        meshes=tuple(replace(mesh, instructions=tuple(found)) for mesh, found in meshes),
        order=tuple(order),
    )
