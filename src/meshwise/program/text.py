"""Programs as text: reading back what they print, and what stands around an instruction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from meshwise.errors import ProgramError
from meshwise.graph.layout import parse_layout
from meshwise.program.instructions import (
    Free,
    Instruction,
    Load,
    LoadKind,
    MeshProgram,
    PipelineProgram,
    Receive,
    Run,
    Send,
)

# Instructions shown before and after the one in question.
_AROUND = 3

_BUFFERS = r"(-|\d+(?: \d+)*)"
_LABEL = r'("(?:[^"\\]|\\.)*")'
_KINDS: dict[str, LoadKind] = {"argument": "argument", "rows": "rows", "index": "index"}
_LOAD = re.compile(r"load (\d+) = (argument|rows|index) (\d+)(?: @(\d+))? as (.*)")
_RUN = re.compile(
    rf"run {_BUFFERS} = {_LABEL}(?: @(\d+))? by (\d+) \({_BUFFERS}\)(?: donates {_BUFFERS})?"
)
_SEND = re.compile(r"send (\d+) to mesh (\d+) as (.*) #(\d+)")
_RECEIVE = re.compile(r"receive (\d+) from mesh (\d+) #(\d+)")
_FREE = re.compile(rf"free {_BUFFERS}")
_RETURN = re.compile(r"return (\d+) as result (\d+)")
_PASS = re.compile(r"pass argument (\d+) as result (\d+)")
_MESH = re.compile(r"mesh (\d+)")
_ORDER = re.compile(r"order (-|\d+\*\d+(?: \d+\*\d+)*)")


def around(mesh: MeshProgram, at: int) -> str:
    """Show an instruction of a mesh and those next to it.

    Args:
        mesh: The program of the mesh.
        at: The position of the instruction.

    Returns:
        One line for each; an arrow points to the instruction.
    """
    first = max(at - _AROUND, 0)
    return "\n".join(
        f"{'>' if first + n == at else ' '} {first + n}: {instruction}"
        for n, instruction in enumerate(mesh.instructions[first : at + _AROUND + 1])
    )


def parse_instruction(text: str) -> Instruction:
    """Read an instruction.

    Args:
        text: What it prints.

    Returns:
        The instruction.

    Raises:
        ProgramError: no instruction prints so.
    """
    for pattern, made in _READERS:
        found = pattern.fullmatch(text)
        if found:
            return made(found)
    raise ProgramError(f"not an instruction: {text!r}")


def parse_program(text: str) -> PipelineProgram:
    """Return the program that prints as `text`.

    Raises:
        ProgramError: naming the line that is not understood.
    """
    reading = _Reading()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            reading.take(line)
        except (ProgramError, ValueError) as error:
            raise ProgramError(f"line {number} of the program: {error}") from error
    if reading.order is None:
        raise ProgramError("the program has no line 'order ...'")
    return PipelineProgram(
        meshes=tuple(
            MeshProgram(
                loads=tuple(mesh.loads),
                instructions=tuple(mesh.instructions),
                results=tuple(mesh.results),
            )
            for mesh in reading.meshes
        ),
        order=reading.order,
        passed=tuple(reading.passed),
    )


@dataclass(slots=True)
class _Mesh:
    loads: list[Load] = field(default_factory=list[Load])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    results: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@dataclass(slots=True)
class _Reading:
    """What was read so far."""

    meshes: list[_Mesh] = field(default_factory=list[_Mesh])
    passed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    order: tuple[int, ...] | None = None

    def take(self, line: str) -> None:
        """One line more."""
        if line.startswith("  "):
            self._of_mesh(line[2:])
        elif found := _MESH.fullmatch(line):
            if int(found[1]) != len(self.meshes):
                raise ProgramError(f"mesh {len(self.meshes)} comes next, not {found[1]}")
            self.meshes.append(_Mesh())
        elif found := _PASS.fullmatch(line):
            self.passed.append((int(found[2]), int(found[1])))
        elif (found := _ORDER.fullmatch(line)) and self.order is None:
            runs = [run.split("*") for run in found[1].split() if run != "-"]
            self.order = tuple(int(m) for m, count in runs for _ in range(int(count)))
        else:
            raise ProgramError(f"not understood: {line!r}")

    def _of_mesh(self, text: str) -> None:
        if not self.meshes:
            raise ProgramError(f"{text!r} stands before the first mesh")
        mesh = self.meshes[-1]
        # What is there comes first, results last.
        if mesh.results and not text.startswith("return "):
            raise ProgramError(f"{text!r} stands behind a result")
        if found := _RETURN.fullmatch(text):
            mesh.results.append((int(found[2]), int(found[1])))
        elif found := _LOAD.fullmatch(text):
            if mesh.instructions:
                raise ProgramError(f"{text!r} stands behind an instruction")
            mesh.loads.append(_load(found))
        else:
            mesh.instructions.append(parse_instruction(text))


def _load(found: re.Match[str]) -> Load:
    return Load(
        buffer=int(found[1]),
        kind=_KINDS[found[2]],
        number=int(found[3]),
        microbatch=_microbatch(found[4]),
        layout=parse_layout(found[5]),
    )


def _run(found: re.Match[str]) -> Run:
    label: str = json.loads(found[2])
    return Run(
        label=label,
        program=int(found[4]),
        microbatch=_microbatch(found[3]),
        inputs=_buffers(found[5]),
        outputs=_buffers(found[1]),
        donated=_buffers(found[6] or "-"),
    )


def _send(found: re.Match[str]) -> Send:
    return Send(
        transfer=int(found[4]),
        buffer=int(found[1]),
        mesh=int(found[2]),
        layout=parse_layout(found[3]),
    )


def _receive(found: re.Match[str]) -> Receive:
    return Receive(transfer=int(found[3]), buffer=int(found[1]), mesh=int(found[2]))


def _free(found: re.Match[str]) -> Free:
    return Free(buffers=_buffers(found[1]))


_READERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Instruction]], ...] = (
    (_RUN, _run),
    (_SEND, _send),
    (_RECEIVE, _receive),
    (_FREE, _free),
)


def _microbatch(digits: str | None) -> int:
    return -1 if digits is None else int(digits)


def _buffers(words: str) -> tuple[int, ...]:
    return () if words == "-" else tuple(map(int, words.split()))
