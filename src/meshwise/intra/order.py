"""The order in which XLA runs the instructions of a program, and the memory that it takes.

XLA:CPU's memory-optimised scheduler walks depth first from the results; of the operands of an
instruction it visits first the one below which values have most further readers, then the one
with most bytes below it.  What is below is summed over operands, so shared values count often.

Source: XLA hlo_memory_scheduler.cc (DFSMemoryScheduler); compiled programs, of which the greedy
list scheduler gave the peak in 9 of 20, this one in 13 (docs/measurements/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwise.intra.fusion import Instructions
from meshwise.intra.placement import Lifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The highest point of an order.

    Attributes:
        num_bytes: Temporaries and results, arguments excepted.
        instruction: What runs then.
        buffers: What is live then.
        lifetimes: All values of the order, those inside of loops too.
        results: Lifetimes of what has a place of its own.
        num_steps: How long the order is; the lifetimes lie within.
    """

    num_bytes: int
    instruction: int
    buffers: tuple[int, ...]
    lifetimes: tuple[Lifetime, ...]
    results: tuple[Lifetime, ...]
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """What the body of a loop takes.

    Attributes:
        num_bytes: At its peak.
        lifetimes: Of its values.
        num_steps: How long its order is.
    """

    num_bytes: int
    lifetimes: tuple[Lifetime, ...]
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of what instructions define and need.

    Attributes:
        buffer: Of each buffer, by value.
        inner: On top while an instruction runs, by instruction (bodies of loops).
    """

    buffer: Sequence[int]
    inner: dict[int, Inner]


class _Flow:
    """Who makes and who reads each buffer."""

    def __init__(self, program: Instructions) -> None:
        self.live_out = frozenset(program.live_out)
        self.maker: dict[int, int] = {}
        for i, defined in enumerate(program.defines):
            for b in defined:
                self.maker[b] = i
        self.readers: dict[int, list[int]] = {b: [] for b in self.maker}
        self.operands: list[list[int]] = []
        self.before: list[list[int]] = []
        self.num_readers = [0] * len(program.value)
        for i, reads in enumerate(program.reads):
            found: dict[int, None] = {}
            for b in reads:
                if b in self.maker:
                    self.readers[b].append(i)
                    found[self.maker[b]] = None
            self.operands.append([j for j in found if j != i])
            for j in found:
                self.num_readers[j] += 1
            for j in program.after.get(i, ()):
                found[j] = None
            self.before.append([j for j in found if j != i])
        for b in self.live_out & self.maker.keys():
            self.num_readers[self.maker[b]] += 1
        self.users: list[list[int]] = [[] for _ in program.value]
        for i, before in enumerate(self.before):
            for j in before:
                self.users[j].append(i)


def _post_order(
    results: Sequence[int], before: Sequence[Sequence[int]], rank: Sequence[Any] | None = None
) -> list[int]:
    """Depth first from each result; operands as they stand, or the lowest rank first."""
    done = [False] * len(before)
    is_open = [False] * len(before)
    order: list[int] = []
    for end in (*results, *range(len(before))):
        stack = [end]
        while stack:
            i = stack[-1]
            if done[i]:
                stack.pop()
                continue
            is_open[i] = True
            # What is open already waits for this one: the two could only take turns by a copy.
            waiting = [j for j in before[i] if not done[j] and not is_open[j]]
            if not waiting:
                done[i] = True
                order.append(i)
                stack.pop()
            elif rank is None:
                stack.extend(reversed(waiting))
            else:
                waiting.sort(key=rank.__getitem__, reverse=True)
                stack.extend(waiting)
    return order


def depth_first_order(program: Instructions, flow: _Flow, sizes: Sizes) -> list[int]:
    """The order of XLA's depth-first scheduler."""
    results = list(dict.fromkeys(flow.maker[b] for b in program.live_out if b in flow.maker))
    rank = _ranks(program, flow, sizes, _post_order(results, flow.operands))
    return _post_order(sorted(results, key=rank.__getitem__), flow.before, rank)


def _ranks(
    program: Instructions, flow: _Flow, sizes: Sizes, order: Sequence[int]
) -> list[tuple[int, int, int]]:
    """First what has most further readers below it, then what has most bytes below it.

    The bytes are capped by what all instructions up to here have, in `order`, so that deep down
    the later one comes first.
    """
    extra = [0] * len(program.value)
    total = [0] * len(program.value)
    all_bytes = 0
    for i in order:
        own = sum(sizes.buffer[b] for b in program.defines[i])
        all_bytes += own
        extra[i] = max(flow.num_readers[i] - 1, 0)
        total[i] = own
        if program.input_users:
            extra[i] += sum(program.input_users.get(b, 0) for b in program.reads[i])
        paths = program.fan.get(i, 1)
        for j in flow.operands[i]:
            extra[i] += extra[j] * paths
            total[i] += total[j] * paths
        extra[i] = min(extra[i], program.num_instructions)
        total[i] = min(total[i], all_bytes)
    # Deep down both are at their limits, and the age of instructions decides: XLA made fusions
    # last, from the results backwards.
    return [
        (-extra[i], -total[i], i if program.is_plain[i] else 2 * len(extra) - i)
        for i in range(len(extra))
    ]


class _Places:
    """Lifetimes while an order is walked; lives only inside `simulate`."""

    def __init__(self, size: Sequence[int], result_bytes: dict[int, int]) -> None:
        self.size = size
        self.result_bytes = result_bytes  # Of results with places of their own.
        self.clock = 0
        # Live buffer -> start of its place, and ends of the values in it before.
        self.since: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.closed: list[Lifetime] = []
        self.results: list[Lifetime] = []

    def run(self, inner: Inner | None, defined: Sequence[int], overwritten: dict[int, int]) -> None:
        """One instruction, after the body that it runs, if any."""
        begun = self.clock
        if inner is not None:
            self.closed.extend(x.later(begun) for x in inner.lifetimes)
            self.clock += inner.num_steps
        for b in defined:
            self.since[b] = (begun, ())  # The stacked results of a loop are there while it runs.
        for d, b in overwritten.items():
            start, ends = self.since.pop(d)
            self.since[b] = (start, (*ends, begun))

    def close(self, b: int, *, is_overwritten: bool = False) -> None:
        """The buffer is free after this time."""
        start, ends = self.since.pop(b)
        num_bytes = self.result_bytes.get(b, self.size[b])
        if num_bytes:
            (self.results if b in self.result_bytes else self.closed).append(
                Lifetime(
                    num_bytes=num_bytes,
                    start=start,
                    ends=(*ends, self.clock),
                    is_overwritten=is_overwritten,
                )
            )


def simulate(program: Instructions, flow: _Flow, sizes: Sizes, order: Sequence[int]) -> Peak:
    """Memory of an order: results are there before operands go, unless they lie over them."""
    outside = program.over_input | program.apart
    size = [0 if b in outside else n for b, n in enumerate(sizes.buffer)]
    left = {b: len(readers) + (b in flow.live_out) for b, readers in flow.readers.items()}
    live, best, at = 0, -1, 0
    taken: list[int] = []
    places = _Places(size, {b: sizes.buffer[b] for b in program.apart})
    for place, i in enumerate(order):
        inner = sizes.inner.get(i)
        dying: list[int] = []
        for b in program.reads[i]:
            if b in left:
                left[b] -= 1
                if not left[b]:
                    dying.append(b)
        overwritten = _overwritten(program, size, i, dying)
        places.run(inner, program.defines[i], overwritten)
        live += sum(size[b] for b in program.defines[i]) - sum(size[b] for b in overwritten)
        high = live + (inner.num_bytes if inner is not None else 0)
        if high > best:
            best, at, taken = high, place, list(overwritten)
        gone = [b for b in dying if b not in overwritten]
        gone += [b for b in program.defines[i] if not left[b]]
        live -= sum(size[b] for b in gone)
        covered = _overwritten(program, sizes.buffer, i, dying)
        for b in gone:
            places.close(b, is_overwritten=covered.get(b, -1) in program.apart)
        places.clock += 1
    for b in tuple(places.since):
        places.close(b)
    live_buffers = [b for b in _live_at(program, flow, order, at) if b not in taken]
    return Peak(
        num_bytes=max(best, 0),
        instruction=order[at] if order else -1,
        buffers=tuple(live_buffers),
        lifetimes=tuple(places.closed),
        results=tuple(places.results),
        num_steps=places.clock + 1,
    )


def _overwritten(
    program: Instructions, size: Sequence[int], i: int, dying: Sequence[int]
) -> dict[int, int]:
    """Dying operands over which results of an instruction lie, with the result."""
    found: dict[int, int] = {}
    for b in program.defines[i]:
        for d in program.may_reuse[i]:
            if d in dying and size[d] == size[b] and d not in found:
                found[d] = b
                break
    return found


def _live_at(program: Instructions, flow: _Flow, order: Sequence[int], at: int) -> list[int]:
    when = {i: place for place, i in enumerate(order)}
    found: list[int] = []
    for b, maker in flow.maker.items():
        if b in program.over_input or b in program.apart or when[maker] > at:
            continue
        last = max((when[i] for i in flow.readers[b]), default=when[maker])
        if b in flow.live_out or last >= at:
            found.append(b)
    return found


def scheduled_peak(program: Instructions, sizes: Sizes) -> Peak:
    """The peak of the order that XLA takes."""
    flow = _Flow(program)
    return simulate(program, flow, sizes, depth_first_order(program, flow, sizes))
