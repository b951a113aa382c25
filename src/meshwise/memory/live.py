"""What is live at once when instructions run in an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from meshwise.memory.heap import Lifetime
from meshwise.memory.local_program import Instructions, LocalInstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class MostLive:
    """The highest point of an order.

    Attributes:
        instruction: What runs then; -1 if nothing runs.
        num_bytes: What is live then, what it needs itself included; 0 if nothing runs.
        buffers: What is live then, without what lies outside of the temporaries.
        lifetimes: All places of temporaries, in steps of the order.
        own_bytes: Most bytes that are live at once, those inside of instructions left out.
    """

    instruction: int
    num_bytes: int
    buffers: tuple[int, ...]
    lifetimes: tuple[Lifetime, ...]
    own_bytes: int


def most_live(
    program: Instructions,
    num_bytes: Sequence[int],
    apart: AbstractSet[int],
    inner: Mapping[int, int],
    order: Sequence[int],
) -> MostLive:
    """Return the highest point: results are there before operands go, unless they lie over them.

    Args:
        program: The instructions.
        num_bytes: Size of each value.
        apart: Results with a place of their own, outside of the temporaries.
        inner: Bytes that an instruction needs while it runs: the body of a loop.
        order: Positions of the instructions, in the order in which they run.
    """
    outside = program.over_input | apart
    left = _readers(program)
    live: dict[int, Lifetime] = {}
    lifetimes: list[Lifetime] = []
    total, own, best, at = 0, 0, -1, -1
    top: tuple[int, ...] = ()
    for now, i in enumerate(order):
        step = program.steps[i]
        dying = _dying(step, left)
        made = {b: Lifetime(num_bytes[b], now, now) for b in step.defines if b not in outside}
        for b, over in _overwritten(step, made, live, dying).items():
            made[b] = live.pop(over)
            total -= made[b].num_bytes
        live.update(made)
        total += sum(place.num_bytes for place in made.values())
        own, high = max(own, total), total + inner.get(i, 0)
        if high > best:
            best, at, top = high, i, tuple(live)
        if i in inner:
            lifetimes.append(Lifetime(inner[i], now, now))
        for b in (*dying, *(b for b in made if not left[b])):
            if b in live:
                lifetimes.append(live.pop(b)._replace(end=now))
                total -= lifetimes[-1].num_bytes
    lifetimes += [place._replace(end=len(order)) for place in live.values()]
    return MostLive(
        instruction=at,
        num_bytes=max(best, 0),
        buffers=top,
        lifetimes=tuple(lifetimes),
        own_bytes=own,
    )


def _readers(program: Instructions) -> dict[int, int]:
    """Return how often each buffer is read; results of the program once more, by the caller."""
    results = frozenset(program.results)
    found = {b: int(b in results) for step in program.steps for b in step.defines}
    for step in program.steps:
        for b in (*step.reads, *step.may_read):
            if b in found:
                found[b] += 1
    return found


def _dying(step: LocalInstruction, left: dict[int, int]) -> list[int]:
    """Count the reads of an instruction, and return the buffers that nothing reads afterwards."""
    found: list[int] = []
    for b in (*step.reads, *step.may_read):
        if b in left:
            left[b] -= 1
            if not left[b]:
                found.append(b)
    return found


def _overwritten(
    step: LocalInstruction,
    made: Mapping[int, Lifetime],
    live: Mapping[int, Lifetime],
    dying: Sequence[int],
) -> dict[int, int]:
    """Return for results of an instruction the dying operands over which they lie."""
    found: dict[int, int] = {}
    for b, place in made.items():
        for d in step.may_reuse:
            is_free = d in dying and d in live and d not in found.values()
            if is_free and live[d].num_bytes == place.num_bytes:
                found[b] = d
                break
    return found
