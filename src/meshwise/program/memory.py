"""Bytes that the buffers of a program hold while it runs, known before it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwise.errors import ProgramError
from meshwise.program.instructions import Free, PipelineProgram, Receive, Run, Send
from meshwise.program.text import around
from meshwise.units import bytes_text


def live_bytes(
    program: PipelineProgram, sizes: Sequence[Mapping[int, int]]
) -> list[tuple[int, ...]]:
    """Bytes of one device of each mesh after each instruction, in the order of dispatch.

    What travels counts where it goes from the moment it is sent.  What an executable needs while it
    runs is not among it.

    Args:
        program: A verified program.
        sizes: For each mesh the bytes of each buffer on one device.
    """
    now = [sum(size[load.buffer] for load in m.loads) for m, size in _pairs(program, sizes)]
    coming = {
        (i.transfer, m): size[i.buffer]
        for m, (mesh, size) in enumerate(_pairs(program, sizes))
        for i in mesh.instructions
        if isinstance(i, Receive)
    }
    found: list[tuple[int, ...]] = []
    for m, _, instruction in program.in_order():
        size = sizes[m]
        match instruction:
            case Run():
                now[m] += sum(size[b] for b in instruction.outputs)
                now[m] -= sum(size[b] for b in instruction.donated)
            case Send():
                now[instruction.mesh] += coming[instruction.transfer, instruction.mesh]
            case Free():
                now[m] -= sum(size[b] for b in instruction.buffers)
            case Receive():
                pass
        found.append(tuple(now))
    return found


def verify_memory(
    program: PipelineProgram, sizes: Sequence[Mapping[int, int]], limits: Sequence[int]
) -> None:
    """Check that the buffers of each mesh fit at any time.

    Args:
        program: A verified program.
        sizes: For each mesh the bytes of each buffer on one device.
        limits: For each mesh the bytes that one device has.

    Raises:
        ProgramError: they do not, with the instruction after which there is too much.
    """
    position = [0] * len(program.meshes)
    for m, now in zip(program.order, live_bytes(program, sizes), strict=True):
        for mesh, (num_bytes, limit) in enumerate(zip(now, limits, strict=True)):
            if num_bytes > limit:
                raise ProgramError(
                    f"after instruction {position[m]} of mesh {m} the buffers of mesh {mesh} hold "
                    f"{bytes_text(num_bytes)} a device, and there are {bytes_text(limit)}\n"
                    f"{around(program.meshes[m], position[m])}"
                )
        position[m] += 1


def _pairs(program: PipelineProgram, sizes: Sequence[Mapping[int, int]]):
    return list(zip(program.meshes, sizes, strict=True))
