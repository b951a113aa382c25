"""The order in which XLA:TPU runs instructions where it hides nothing that is sent.

Source: XLA hlo_memory_scheduler.cc (ListScheduler); compiled programs (libtpu 0.0.42.1).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from meshwise.memory.local_program import Instructions, LocalValue
from meshwise.memory.order import dependences, post_order

_Rank = tuple[int, int, int]


def list_order(program: Instructions, values: Sequence[LocalValue]) -> list[int]:
    """Return positions of the instructions as XLA's list scheduler runs them.

    Of what could run next it takes what makes least bytes more than it frees, then what most
    others read.  What reads nothing, as the zeros into which gradients are scattered, is made when
    it is wanted.

    Args:
        program: The instructions.
        values: The values of the program.
    """
    return _ListSchedule(program, values).order()


class _ListSchedule:
    """Instructions while they are put in order; a rank is old once a buffer has one reader left."""

    def __init__(self, program: Instructions, values: Sequence[LocalValue]) -> None:
        steps = program.steps
        maker = {b: i for i, step in enumerate(steps) for b in step.defines}
        counted = maker.keys() - program.over_input
        self.size = {b: values[b].num_bytes for b in counted}
        self.reads = [[b for b in dict.fromkeys(s.reads) if b in counted] for s in steps]
        self.readers: dict[int, list[int]] = {b: [] for b in counted}
        for i, reads in enumerate(self.reads):
            for b in reads:
                self.readers[b].append(i)
        results = frozenset(program.results)
        self.num_left = {b: len(found) + (b in results) for b, found in self.readers.items()}
        self.made = [sum(self.size.get(b, 0) for b in s.defines) for s in steps]
        self.num_readers = [
            sum(len(self.readers.get(b, ())) for b in step.defines) for step in steps
        ]
        self.after: list[list[int]] = [[] for _ in steps]
        # What reads nothing, by each instruction that wants it.
        self.wanted: list[list[int]] = [[] for _ in steps]
        self.num_before = [0] * len(steps)
        is_source = [not (step.reads or step.may_read or step.after) for step in steps]
        graph = dependences(program)
        place = {i: now for now, i in enumerate(post_order(graph.results, graph.before))}
        for i, found in enumerate(graph.before):
            for j in found:
                if is_source[j]:
                    self.wanted[i].append(j)
                elif place[j] < place[i]:  # Of two that wait for one another one must run first.
                    self.after[j].append(i)
                    self.num_before[i] += 1
        self.alone = [i for i, is_free in enumerate(is_source) if is_free and not self.after[i]]

    def rank(self, i: int) -> _Rank:
        """Return what is least for what runs next."""
        freed = sum(self.size[b] for b in self.reads[i] if self.num_left[b] == 1)
        return self.made[i] - freed, -self.num_readers[i], i

    def order(self) -> list[int]:
        """Return positions of all instructions."""
        late = frozenset(self.alone)
        ready = [
            self.rank(i) for i, count in enumerate(self.num_before) if not count and i not in late
        ]
        heapq.heapify(ready)
        found: dict[int, None] = {}
        while ready:
            rank = heapq.heappop(ready)
            i = rank[-1]
            if i in found or self.rank(i) != rank:
                continue
            found |= dict.fromkeys((*(j for j in self.wanted[i] if j not in found), i))
            for j in self.freed_by(i):
                heapq.heappush(ready, self.rank(j))
        return [*found, *(i for i in self.alone if i not in found)]

    def freed_by(self, i: int) -> Iterator[int]:
        """Yield what can run from now on, and what would free more than before."""
        for j in self.after[i]:
            self.num_before[j] -= 1
        last = [b for b in self.reads[i] if self.num_left[b] == 2]
        for b in self.reads[i]:
            self.num_left[b] -= 1
        yield from (j for j in self.after[i] if not self.num_before[j])
        yield from (j for b in last for j in self.readers[b] if not self.num_before[j])
