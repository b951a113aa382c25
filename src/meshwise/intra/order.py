"""The order in which XLA runs the instructions of a program, and the memory that it takes.

XLA's memory scheduler tries three orders and takes the one with the lowest peak: a greedy list
(next what frees most), a depth-first order that visits heavy operands first, and the post-order
of the program.

Source: XLA hlo_memory_scheduler.cc (ListMemoryScheduler, DFSMemoryScheduler, PostOrderScheduler).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwise.intra.fusion import Instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The highest point of an order.

    Attributes:
        num_bytes: Temporaries and results, arguments excepted.
        instruction: What runs then.
        buffers: What is live then.
    """

    num_bytes: int
    instruction: int
    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of what instructions define and need.

    Attributes:
        buffer: Of each buffer, by value.
        inner: On top while an instruction runs, by instruction (bodies of loops).
    """

    buffer: Sequence[int]
    inner: dict[int, int]


class _Flow:
    """Who makes and who reads each buffer."""

    def __init__(self, program: Instructions) -> None:
        self.maker: dict[int, int] = {}
        for i, defined in enumerate(program.defines):
            for b in defined:
                self.maker[b] = i
        # A loop defines no buffer for its carries: what reads them must come after it.
        self.readers: dict[int, list[int]] = {b: [] for b in self.maker}
        self.before: list[list[int]] = []
        for i, reads in enumerate(program.reads):
            found: dict[int, None] = {}
            for b in reads:
                if b in self.maker:
                    self.readers[b].append(i)
                    found[self.maker[b]] = None
            for j in program.after.get(i, ()):
                found[j] = None
            self.before.append([j for j in found if j != i])
        self.users: list[list[int]] = [[] for _ in program.value]
        for i, before in enumerate(self.before):
            for j in before:
                self.users[j].append(i)


def list_order(program: Instructions, flow: _Flow, sizes: Sizes) -> list[int]:
    """Greedy: of what is ready, what frees most; of equals what has most users."""
    count = len(program.value)
    size = sizes.buffer
    uses = {
        b: len(readers) + (b in program.live_out) for b, readers in flow.readers.items()
    }
    waiting = [len(before) for before in flow.before]
    defined = [
        sizes.inner[i] if i in sizes.inner else sum(size[b] for b in program.defines[i])
        for i in range(count)
    ]
    temporaries = [
        [b for b in reads if b in flow.maker] for reads in program.reads
    ]
    heap: list[tuple[int, int, int, int]] = []
    current = [0] * count
    is_ready = [False] * count
    serial = 0

    def push(i: int) -> None:
        nonlocal serial
        freed = sum(size[b] for b in temporaries[i] if uses[b] == 1)
        gain = freed - defined[i]
        serial += 1
        current[i] = serial
        heapq.heappush(heap, (-gain, -len(flow.users[i]), -serial, i))

    for i in range(count):
        if not waiting[i]:
            is_ready[i] = True
            push(i)
    order: list[int] = []
    done = [False] * count
    while heap:
        _, _, key, i = heapq.heappop(heap)
        if done[i] or current[i] != -key:
            continue
        done[i] = True
        order.append(i)
        changed: list[int] = []
        for b in temporaries[i]:
            uses[b] -= 1
            if uses[b] == 1:
                changed.append(b)
        for j in flow.users[i]:
            waiting[j] -= 1
            if not waiting[j]:
                is_ready[j] = True
                push(j)
        for b in changed:
            for j in flow.readers[b]:
                if is_ready[j] and not done[j]:
                    push(j)
    return order


def depth_first_order(
    program: Instructions, flow: _Flow, rank: Callable[[int], object] | None
) -> list[int]:
    """Post-order from the results; operands in program order, or by falling rank."""
    count = len(program.value)
    before = flow.before
    if rank is not None:
        before = [sorted(found, key=rank) for found in before]  # type: ignore[arg-type]
    done = [False] * count
    order: list[int] = []
    for end in [i for i in range(count) if not flow.users[i]]:
        stack: list[tuple[int, int]] = [(end, 0)]
        while stack:
            i, k = stack.pop()
            if done[i]:
                continue
            operands = before[i]
            while k < len(operands) and done[operands[k]]:
                k += 1
            if k < len(operands):
                stack.append((i, k + 1))
                stack.append((operands[k], 0))
            else:
                done[i] = True
                order.append(i)
    return order


def _heavy_first(program: Instructions, flow: _Flow, sizes: Sizes) -> Callable[[int], object]:
    extra = [0] * len(program.value)
    total = [0] * len(program.value)
    all_bytes = 0
    for i, defined in enumerate(program.defines):
        own = sum(sizes.buffer[b] for b in defined)
        all_bytes += own
        extra[i] = max(len(flow.users[i]) - 1, 0)
        total[i] = own
        for j in flow.before[i]:
            extra[i] += extra[j]
            total[i] += total[j]
        extra[i] = min(extra[i], len(program.value))
        total[i] = min(total[i], all_bytes)
    return lambda i: (-extra[i], -total[i], i)


def simulate(program: Instructions, flow: _Flow, sizes: Sizes, order: Sequence[int]) -> Peak:
    """Memory of an order: results are there before operands go, unless they lie over them."""
    size = [0 if b in program.over_input else n for b, n in enumerate(sizes.buffer)]
    left = {
        b: len(readers) + (b in program.live_out) for b, readers in flow.readers.items()
    }
    live = 0
    best, at = -1, 0
    for place, i in enumerate(order):
        dying = []
        for b in program.reads[i]:
            if b in left:
                left[b] -= 1
                if not left[b]:
                    dying.append(b)
        made = 0
        for b in program.defines[i]:
            made += size[b]
            if size[b] and any(
                d in program.may_reuse[i] and size[d] == size[b] for d in dying
            ):
                d = next(d for d in dying if d in program.may_reuse[i] and size[d] == size[b])
                dying.remove(d)
                made -= size[b]
        live += made
        high = live + sizes.inner.get(i, 0)
        if high > best:
            best, at = high, place
        live -= sum(size[b] for b in dying)
        live -= sum(size[b] for b in program.defines[i] if not left[b])
    return Peak(num_bytes=max(best, 0), instruction=order[at] if order else -1,
                buffers=_live_at(program, flow, order, at))


def _live_at(
    program: Instructions, flow: _Flow, order: Sequence[int], at: int
) -> tuple[int, ...]:
    when = {i: place for place, i in enumerate(order)}
    found: list[int] = []
    for b, maker in flow.maker.items():
        if b in program.over_input or when[maker] > at:
            continue
        last = max((when[i] for i in flow.readers[b]), default=when[maker])
        if b in program.live_out or last >= at:
            found.append(b)
    return tuple(found)


def lowest_peak(program: Instructions, sizes: Sizes) -> Peak:
    """The peak of the order that XLA takes."""
    flow = _Flow(program)
    orders = (
        list_order(program, flow, sizes),
        depth_first_order(program, flow, _heavy_first(program, flow, sizes)),
        depth_first_order(program, flow, None),
    )
    peaks = [simulate(program, flow, sizes, order) for order in orders]
    return min(peaks, key=lambda peak: peak.num_bytes)
