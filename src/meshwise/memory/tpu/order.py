"""The order in which XLA:TPU runs instructions where it hides no collectives.

Source: XLA hlo_memory_scheduler.cc (ListScheduler); compiled programs (libtpu 0.0.42.1).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from meshwise.memory.local_program import Instructions, LocalValue

_Rank = tuple[int, int, int]


def list_order(program: Instructions, values: Sequence[LocalValue]) -> list[int]:
    """Return positions of the instructions as XLA's list scheduler runs them.

    Of what could run next it takes what makes least bytes more than it frees, then what most
    others read.

    Args:
        program: The instructions.
        values: The values of the program.
    """
    return _ListSchedule(program, values).order()


class _ListSchedule:
    """Instructions while they are put in order; a rank is old once a buffer has one reader left."""

    def __init__(self, program: Instructions, values: Sequence[LocalValue]) -> None:
        maker = {b: i for i, step in enumerate(program.steps) for b in step.defines}
        before = [
            dict.fromkeys(
                j for j in (*(maker[b] for b in step.reads if b in maker), *step.after) if j != i
            )
            for i, step in enumerate(program.steps)
        ]
        counted = {b for s in program.steps for b in s.defines} - program.over_input
        self.size = {b: values[b].num_bytes for b in counted}
        self.reads = [[b for b in dict.fromkeys(s.reads) if b in counted] for s in program.steps]
        self.readers: dict[int, list[int]] = {b: [] for b in counted}
        for i, reads in enumerate(self.reads):
            for b in reads:
                self.readers[b].append(i)
        results = frozenset(program.results)
        self.num_left = {b: len(found) + (b in results) for b, found in self.readers.items()}
        self.made = [sum(self.size.get(b, 0) for b in s.defines) for s in program.steps]
        self.num_readers = [
            sum(len(self.readers.get(b, ())) for b in step.defines) for step in program.steps
        ]
        self.num_before = [len(found) for found in before]
        self.after: list[list[int]] = [[] for _ in before]
        for i, found in enumerate(before):
            for j in found:
                self.after[j].append(i)

    def rank(self, i: int) -> _Rank:
        """Return what is least for what runs next."""
        freed = sum(self.size[b] for b in self.reads[i] if self.num_left[b] == 1)
        return self.made[i] - freed, -self.num_readers[i], i

    def order(self) -> list[int]:
        """Return positions of all instructions."""
        ready = [self.rank(i) for i, count in enumerate(self.num_before) if not count]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            rank = heapq.heappop(ready)
            i = rank[-1]
            # Negative once it has run.
            if self.num_before[i] or self.rank(i) != rank:
                continue
            self.num_before[i] = -1
            found.append(i)
            for j in self.freed_by(i):
                heapq.heappush(ready, self.rank(j))
        return found

    def freed_by(self, i: int) -> Iterator[int]:
        """Yield what can run from now on, and what would free more than before."""
        for j in self.after[i]:
            self.num_before[j] -= 1
        last = [b for b in self.reads[i] if self.num_left[b] == 2]
        for b in self.reads[i]:
            self.num_left[b] -= 1
        yield from (j for j in self.after[i] if not self.num_before[j])
        yield from (j for b in last for j in self.readers[b] if not self.num_before[j])
