"""All processes start what passes between them in one order, and none waits for ever."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from meshwise.program.instructions import PipelineProgram, Receive, Send
from meshwise.runtime.pipeline.interpreter import Step, own_instructions
from meshwise.runtime.transports.tile_copier import TileCopier
from program.random_tables import random_program


@dataclass(frozen=True)
class FakeDevice:
    id: int
    process_index: int


class FakeSharding:
    """A dim of 12 elements, split evenly over devices, or whole on each of them."""

    is_fully_addressable = False

    def __init__(self, devices: Sequence[FakeDevice], *, is_split: bool) -> None:
        self.devices, self.is_split = tuple(devices), is_split

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[FakeDevice, Any]:
        size = shape[0] // len(self.devices) if self.is_split else shape[0]
        starts = [n * size if self.is_split else 0 for n in range(len(self.devices))]
        parts = ((slice(start, start + size),) for start in starts)
        return dict(zip(self.devices, parts, strict=True))


class FakeArray:
    """An array of which this process has nothing that a test looks at."""

    shape, dtype, is_fully_addressable, addressable_shards = (12,), np.dtype(int), False, ()

    def __init__(self, sharding: FakeSharding) -> None:
        self.sharding = sharding


@dataclass(frozen=True)
class FakeTransport:
    process: int
    is_collective: bool


# Two processes of 3 devices and one of 2.
DEVICES = [FakeDevice(n, n // 3) for n in range(8)]
ENDS = [
    FakeSharding(DEVICES[first : first + count], is_split=is_split)
    for first, count in ((0, 2), (0, 4), (2, 2), (1, 6), (6, 2), (2, 4))
    for is_split in (True, False)
]


def passages(process: int, *, is_collective: bool, ends: Any) -> list[tuple[Any, Any, Any]]:
    """The moves of a process to and from others, with their devices."""
    copier: Any = TileCopier(FakeTransport(process, is_collective))  # type: ignore[arg-type]
    source, destination = ends
    copies = copier.copies(FakeArray(source), destination)
    return [
        (move, copies.devices[move.source], copies.devices[move.destination])
        for phase in copies.phases
        for move in phase.passages
    ]


@pytest.mark.parametrize("ends", list(itertools.product(ENDS, ENDS)))
def test_a_collective_transport_gets_the_same_list_in_every_process(ends: Any) -> None:
    found = [passages(p, is_collective=True, ends=ends) for p in range(3)]
    assert found[0] == found[1] == found[2]
    for process in range(3):
        # Any other gets those of this process, in the same order.
        own = [
            passage
            for passage in found[0]
            if process in {device.process_index for device in passage[1:]}
        ]
        assert passages(process, is_collective=False, ends=ends) == own
    assert all(a.process_index != b.process_index for _, a, b in found[0])


def crossing_of(program: PipelineProgram, process_of: Sequence[int]) -> list[int]:
    """The transfers between processes, in order."""
    return [
        i.transfer
        for mesh, _, i in program.in_order()
        if isinstance(i, Send) and process_of[mesh] != process_of[i.mesh]
    ]


def assert_all_end(steps: Sequence[Sequence[Step]], crossing: Sequence[int]) -> None:
    """Each process goes on until it receives what not every process has sent or asked for."""
    at = [0] * len(steps)
    started: list[list[int]] = [[] for _ in steps]
    moved = True
    while moved:
        moved = False
        for process, own in enumerate(steps):
            while at[process] < len(own):
                instruction = own[at[process]].instruction
                if isinstance(instruction, Send) and instruction.transfer in crossing:
                    started[process].append(instruction.transfer)
                elif (
                    isinstance(instruction, Receive)
                    and instruction.transfer in crossing
                    and not all(instruction.transfer in those for those in started)
                ):
                    break
                at[process] += 1
                moved = True
    assert at == [len(own) for own in steps]
    assert all(those == list(crossing) for those in started)


@pytest.mark.parametrize("seed", range(60))
def test_programs_end_where_every_process_takes_part_in_every_transfer(seed: int) -> None:
    rng = random.Random(seed)
    _, program = random_program(rng)
    count = rng.randint(1, 4)
    process_of = [rng.randrange(count) for _ in program.meshes]
    crossing = crossing_of(program, process_of)
    here = [{m for m, p in enumerate(process_of) if p == process} for process in range(count)]
    assert_all_end([own_instructions(program, own, crossing) for own in here], crossing)
    for own in here:
        # Without such a transport a process dispatches nothing that others do between themselves.
        for step in own_instructions(program, own):
            to = step.instruction.mesh if isinstance(step.instruction, Send) else step.mesh
            assert {step.mesh, to} & own
