"""What a mesh is told to do.  A buffer is a number; each mesh has its own.

The text of each instruction is one line; `program.text` reads it back.

Source: Alpa section 6; docs/decisions/0022.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from meshwise.graph.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run an executable.

    Attributes:
        label: What it does, for people.
        program: Number of the executable.
        microbatch: Which one; -1 for what runs once a step.
        inputs: Buffers.
        outputs: Buffers, one for each result.
        donated: Buffers among the inputs that it overwrites: they are gone.
    """

    label: str
    program: int
    microbatch: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    donated: tuple[int, ...] = ()

    def __str__(self) -> str:
        at = "" if self.microbatch < 0 else f" @{self.microbatch}"
        gone = f" donates {_list(self.donated)}" if self.donated else ""
        what = f"{json.dumps(self.label)}{at} by {self.program}"
        return f"run {_list(self.outputs)} = {what} ({_list(self.inputs)}){gone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Start to send a buffer to another mesh.

    Attributes:
        transfer: Number of the transfer; the other side has it too.
        buffer: What is sent.
        mesh: To which.
        layout: How it lies there.
    """

    transfer: int
    buffer: int
    mesh: int
    layout: Layout

    def __str__(self) -> str:
        return f"send {self.buffer} to mesh {self.mesh} as {self.layout} #{self.transfer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """Wait for what another mesh sends.

    Attributes:
        transfer: Number of the transfer.
        buffer: Where it goes.
        mesh: From which.
    """

    transfer: int
    buffer: int
    mesh: int

    def __str__(self) -> str:
        return f"receive {self.buffer} from mesh {self.mesh} #{self.transfer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Let buffers go."""

    buffers: tuple[int, ...]

    def __str__(self) -> str:
        return f"free {_list(self.buffers)}"


Instruction: TypeAlias = Run | Send | Receive | Free


LoadKind: TypeAlias = Literal["argument", "rows", "index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is in a buffer when the step begins.

    Attributes:
        buffer: Which.
        kind: `argument`, `rows` of an argument, or `index` of a micro-batch.
        number: The number of the argument.
        microbatch: Which one, for `rows` and `index`; else -1.
        layout: How it lies.
    """

    buffer: int
    kind: LoadKind
    number: int
    microbatch: int
    layout: Layout

    def __str__(self) -> str:
        at = "" if self.microbatch < 0 else f" @{self.microbatch}"
        return f"load {self.buffer} = {self.kind} {self.number}{at} as {self.layout}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshProgram:
    """What one mesh does in a step.

    Attributes:
        loads: Buffers that are there when it begins.
        instructions: In order.
        results: Pairs (number of the step's result, buffer).
    """

    loads: tuple[Load, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgram:
    """What all meshes do in a step.

    Attributes:
        meshes: One program each.
        order: An order in which one thread can dispatch all instructions: of each the mesh; those
            of one mesh come in their own order.
        passed: Pairs (result, argument) of results that are arguments.
    """

    meshes: tuple[MeshProgram, ...]
    order: tuple[int, ...]
    passed: tuple[tuple[int, int], ...]

    def in_order(self) -> Iterator[tuple[int, int, Instruction]]:
        """Mesh, position in its list, and instruction, as one thread dispatches them."""
        position = [0] * len(self.meshes)
        for mesh in self.order:
            at = position[mesh]
            yield mesh, at, self.meshes[mesh].instructions[at]
            position[mesh] += 1

    def __str__(self) -> str:
        """One line an instruction; `program.text.parse_program` reads it back."""
        lines: list[str] = []
        for m, mesh in enumerate(self.meshes):
            lines.append(f"mesh {m}")
            lines += [f"  {load}" for load in mesh.loads]
            lines += [f"  {instruction}" for instruction in mesh.instructions]
            lines += [f"  return {b} as result {j}" for j, b in mesh.results]
        lines += [f"pass argument {i} as result {j}" for j, i in self.passed]
        runs = [(mesh, len(list(run))) for mesh, run in itertools.groupby(self.order)]
        lines.append("order " + _words([f"{mesh}*{count}" for mesh, count in runs]))
        return "\n".join(lines)


def _list(buffers: Sequence[int]) -> str:
    return _words(list(map(str, buffers)))


def _words(words: Sequence[str]) -> str:
    return " ".join(words) if words else "-"
