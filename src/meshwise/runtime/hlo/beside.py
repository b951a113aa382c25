"""What runs beside each collective, by the schedule of a compiled program.

XLA:GPU starts a collective and waits for it in two instructions, and so does XLA:TPU with permutes;
what the schedule has between them runs meanwhile.  Other collectives of XLA:TPU are either done at
once, or in a chain of fusions, each of which does a part of the collective beside work of its own.

Source: seen in the text of jax-cuda12-pjrt 0.10.2 and libtpu 0.0.42.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwise.runtime.hlo.collectives import chain_part, collective_kind
from meshwise.runtime.hlo.loops import called_names
from meshwise.runtime.hlo.module import Computation, HloInstruction, Module

# Name of the computation and of the instruction: where `collectives.HloCollective` stands.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncCollective:
    """An asynchronous collective.

    Attributes:
        place: Where its instruction stands, in a chain of fusions the first one.
        beside: The instructions that run beside it, all of one computation.
    """

    place: Place
    beside: tuple[HloInstruction, ...]


def async_collectives(module: Module) -> dict[str, list[AsyncCollective]]:
    """Return the asynchronous collectives by the computation in which they are scheduled.

    Those of a computation are in the order in which they end.

    Args:
        module: A scheduled program; the order of its lines is that of execution.
    """
    found = {
        computation.name: [*_pairs(module, computation), *_chains(module, computation)]
        for computation in module.computations.values()
    }
    order = {
        name: {now.name: n for n, now in enumerate(module.computations[name].instructions)}
        for name in found
    }
    return {
        name: sorted(some, key=lambda sent: order[name][sent.beside[-1].name])
        for name, some in found.items()
        if some
    }


def _pairs(module: Module, computation: Computation) -> Iterator[AsyncCollective]:
    """Yield what is started and waited for in two instructions."""
    started: dict[str, tuple[Place, int]] = {}
    for n, now in enumerate(computation.instructions):
        source = started.get(now.operands[0]) if now.operands else None
        if now.opcode.endswith("-update") and source is not None:
            started[now.name] = source
        elif now.opcode.endswith("-done") and source is not None:
            place, start = source
            if between := computation.instructions[start + 1 : n]:
                yield AsyncCollective(place=place, beside=between)
        elif _is_start(now):
            place = _place(module, computation, now)
            if place is not None:
                started[now.name] = place, n


def _is_start(instruction: HloInstruction) -> bool:
    if instruction.opcode != "send" and not instruction.opcode.endswith("-start"):
        return False
    # XLA:GPU runs such a pair at once.
    return '"is_sync":true' not in instruction.attributes


def _place(module: Module, computation: Computation, instruction: HloInstruction) -> Place | None:
    """Return where the collective stands that an instruction starts; None if it starts none."""
    if collective_kind(instruction) is not None:
        return computation.name, instruction.name
    for name in called_names(instruction):
        for inner in module.computations[name].instructions:
            if collective_kind(inner) is not None:
                return name, inner.name
    return None


def _chains(module: Module, computation: Computation) -> Iterator[AsyncCollective]:
    """Yield what runs in chains of fusions."""
    places: dict[tuple[str | None, str], Place] = {}
    links: dict[tuple[str | None, str], list[HloInstruction]] = {}
    for now in computation.instructions:
        if now.opcode != "fusion":
            continue
        for name in called_names(now):
            for inner in module.computations[name].instructions:
                part = chain_part(inner)
                if part is not None:
                    places.setdefault(part, (name, inner.name))
                    links.setdefault(part, []).append(now)
    for part, place in places.items():
        yield AsyncCollective(place=place, beside=tuple(links[part]))
